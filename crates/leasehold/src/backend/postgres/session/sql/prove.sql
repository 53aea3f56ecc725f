-- Whether this session has each of these advisory locks.
-- $1 classid, $2 objid, $3 objsubid, as pg_locks shows them
select array_agg(l.pid is not null order by k.n)
  from unnest($1, $2, $3) with ordinality as k(high, low, form, n)
  left join (select pid, classid, objid, objsubid from pg_locks
              where locktype = 'advisory' and granted and pid = pg_backend_pid()) as l
    on l.classid = k.high::oid and l.objid = k.low::oid and l.objsubid = k.form
