select l.pid, a.application_name, coalesce(host(a.client_addr), 'local'),
       h.owner, h.token, h.host, h.pid, h.label,
       (date_part('epoch', h.since) * 1000000)::bigint,
       (date_part('epoch', h.expires - clock_timestamp()) * 1000000)::bigint,
       l.classid::bigint, l.objid::bigint, l.objsubid, h.name, l.granted
  from pg_locks l
  left join pg_stat_activity a on a.pid = l.pid
  left join leasehold.holds h
    on h.high = l.classid::bigint and h.low = l.objid::bigint and h.form = l.objsubid
   and h.backend = l.pid and l.granted
 where l.locktype = 'advisory'
   and l.database = (select oid from pg_database where datname = current_database())
