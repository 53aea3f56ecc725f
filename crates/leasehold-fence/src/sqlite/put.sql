-- Insert if newer. ?1 key, ?2 token, from ?3 on the other columns, the last the row's mark, which
-- a row that a newer lease deleted left.
insert into {table} as present ({key}, {token}{columns})
select $1, $2{values}
where not exists (
    select 1 from leasehold_fence where resource = {mark} and token > $2)
on conflict ({key}) do update set {token} = excluded.{token}{changes}
where present.{token} <= excluded.{token}
