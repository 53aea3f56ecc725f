-- Every lock that is held or waited for and whose name starts with a prefix, in order.
-- $1 the prefix, which is no pattern
select n.name,
       l.owner, l.token, l.host, l.pid, l.label,
       (date_part('epoch', l.since) * 1000000)::bigint,
       (date_part('epoch', l.expires - clock_timestamp()) * 1000000)::bigint,
       (select count(*) from leasehold.waiters w
         where w.lock = n.name and w.alive > clock_timestamp()),
       a.by, a.reason, (date_part('epoch', a.at) * 1000000)::bigint, a.token
  from (select name from leasehold.locks
         where name >= $1 and starts_with(name, $1)
           and owner is not null and expires > clock_timestamp()
        union
        select lock from leasehold.waiters
         where lock >= $1 and starts_with(lock, $1) and alive > clock_timestamp()) as n(name)
  left join leasehold.locks l on l.name = n.name
  left join lateral (select * from leasehold.audit f where f.lock = n.name
                      order by f.token desc, f.id desc limit 1) a on true
 order by n.name collate "C"
