-- Raises the mark of a row that is to be deleted. $1 key, $2 token.
select leasehold_fence.advance({resource} || row.key::text, $2) from (
    select {key} from {table} where false
    union all select $1) as row (key)
