-- Takes one lock that is free and has no waiters, in one statement: the common case.
-- No row comes back when anything stands in the way; then the careful way decides.
-- ?1 lock, ?2 owner, ?3 client, ?4 now, ?5 expires, ?6 wall clock,
-- ?7 the clock as lowest token, ?8 the ceiling as far as it is known
insert into locks (name, token, owner, client, proved, expires, since)
select ?1, max(floor + 1, ?7), ?2, ?3, ?4, ?5, ?6
  from meta
 where max(floor + 1, ?7) <= ?8
   and exists (select 1 from clients where id = ?3)
   and not exists (select 1 from waiters where lock = ?1)
   and not exists (select 1 from bars where owner = ?2)
    on conflict (name) do update
   set token = max(locks.token + 1, excluded.token),
       owner = excluded.owner, client = excluded.client,
       proved = excluded.proved, expires = excluded.expires, since = excluded.since
 where (locks.owner is null or (locks.expires <= ?4 and locks.owner <> ?2))
   and locks.token < ?8
returning token
