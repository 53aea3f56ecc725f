-- Extends one lease; never shortens what an earlier renewal promised, never re-takes.
-- ?1 lock, ?2 owner, ?3 token, ?4 now, ?5 expires
update locks
   set expires = max(expires, ?5)
 where name = ?1 and owner = ?2 and token = ?3 and expires > ?4
