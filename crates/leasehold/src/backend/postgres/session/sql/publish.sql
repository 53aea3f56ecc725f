-- Says about locks that are held who holds them. Only for people: what counts is pg_locks.
-- $1 classid, $2 objid, $3 objsubid, $4 name, $5 token, $6 owner, $7 backend,
-- $8 since and $9 left, in microseconds; $10 host, $11 pid, $12 label
insert into leasehold.holds as h
       (high, low, form, name, token, owner, backend, since, expires, host, pid, label)
select k.high, k.low, k.form, k.name, k.token, k.owner, k.backend,
       to_timestamp(k.since / 1e6), clock_timestamp() + k.remains * interval '1 microsecond',
       $10, $11, $12
  from unnest($1, $2, $3, $4, $5, $6, $7, $8, $9)
       as k(high, low, form, name, token, owner, backend, since, remains)
 order by k.high, k.low, k.form
    on conflict (high, low, form, backend) do update
   set name = excluded.name, token = excluded.token, owner = excluded.owner,
       since = excluded.since, expires = excluded.expires, host = excluded.host,
       pid = excluded.pid, label = excluded.label
