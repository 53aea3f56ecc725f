-- Raises the mark of a row that is to be deleted, or advanced. $1 key, $2 token.
select leasehold_fence.raise_mark(leasehold_fence.mark_of({target}::regclass, row.key), $2) from (
    select {key} from {table} where false
    union all select $1) as row (key)
