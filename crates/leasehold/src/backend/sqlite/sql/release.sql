-- Gives one lock back that nobody waits for: the common case.
-- ?1 lock, ?2 owner, ?3 token, ?4 now
update locks
   set owner = null, expires = ?4
 where name = ?1 and owner = ?2 and token = ?3 and expires > ?4
   and not exists (select 1 from waiters where lock = ?1)
