-- The last token of a lock that can simply be taken: it is free, nobody waits for it,
-- and the owner is not barred. No row when anything stands in the way.
-- ?1 lock, ?2 owner, ?3 now
select token from locks
 where name = ?1
   and (owner is null or (expires <= ?3 and owner <> ?2))
   and not exists (select 1 from waiters where lock = ?1)
   and not exists (select 1 from bars where owner = ?2)
