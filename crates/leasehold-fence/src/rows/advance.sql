-- Raises the token of a row, and nothing else. $1 key, $2 token.
update {table} set {token} = $2 where {key} = $1 and {token} <= $2
