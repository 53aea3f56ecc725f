-- As look.sql, in a transaction that found no waiters and no bars at all.
-- ?1 lock, ?2 owner, ?3 now
select token from locks
 where name = ?1 and (owner is null or (expires <= ?3 and owner <> ?2))
