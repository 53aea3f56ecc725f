-- ?1 key, ?2 token.
delete from {table} where {key} = $1 and {token} <= $2
