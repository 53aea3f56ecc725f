-- The highest token that a row, or what a deletion left of it, has seen. ?1 key, ?2 the row's mark.
select max(token) from (
    select {token} as token from {table} where {key} = $1
    union all
    select token from leasehold_fence where resource = $2)
