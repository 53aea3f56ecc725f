-- One lock, and whatever is known of it. No row when nothing is.
-- $1 its name
select n.name,
       l.owner, l.token, l.host, l.pid, l.label,
       (date_part('epoch', l.since) * 1000000)::bigint,
       (date_part('epoch', l.expires - clock_timestamp()) * 1000000)::bigint,
       (select count(*) from leasehold.waiters w
         where w.lock = n.name and w.alive > clock_timestamp()),
       a.by, a.reason, (date_part('epoch', a.at) * 1000000)::bigint, a.token
  from (select $1 collate "C") as n(name)
  left join leasehold.locks l on l.name = n.name
  left join lateral (select * from leasehold.audit f where f.lock = n.name
                      order by f.token desc, f.id desc limit 1) a on true
 where l.name is not null or a.id is not null
    or exists (select 1 from leasehold.waiters w where w.lock = n.name)
