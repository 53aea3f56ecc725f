-- Insert if newer. $1 key, $2 token, from $3 on the other columns. The union gives the
-- parameters the types of the columns. A row that a newer lease deleted left its mark.
insert into {table} as present ({key}, {token}{columns})
select given.* from (
    select {key}, {token}{columns} from {table} where false
    union all select $1, $2{values}) as given
where leasehold_fence.raise_mark(
    leasehold_fence.mark_of({target}::regclass, given.{key}), given.{token}) is not null
on conflict ({key}) do update set {token} = excluded.{token}{changes}
where present.{token} <= excluded.{token}
