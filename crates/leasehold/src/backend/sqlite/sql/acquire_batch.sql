-- Takes the row of a lock that is free, that nobody waits for, and whose owner was not
-- settled, with a token above its last: the common case in a batch.
-- ?1 lock, ?2 token, ?3 owner, ?4 client, ?5 now, ?6 expires, ?7 wall clock
update locks
   set token = ?2, owner = ?3, client = ?4, proved = ?5, expires = ?6, since = ?7
 where name = ?1 and token < ?2
   and (owner is null or (expires <= ?5 and owner <> ?3))
   and not exists (select 1 from waiters where lock = ?1)
   and not exists (select 1 from bars where owner = ?3)
