-- Insert if newer. $1 key, $2 token, from $3 on the other columns. The union gives the
-- parameters the types of the columns. A row that a newer lease deleted left its mark.
insert into {table} as present ({key}, {token}{columns})
select given.* from (
    select {key}, {token}{columns} from {table} where false
    union all select $1, $2{values}) as given
where leasehold_fence.advance({resource} || given.{key}::text, given.{token}) is not null
on conflict ({key}) do update set {token} = excluded.{token}{changes}
where present.{token} <= excluded.{token}
