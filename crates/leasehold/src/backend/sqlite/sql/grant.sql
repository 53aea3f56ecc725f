-- Writes a lease that was decided on.
-- ?1 lock, ?2 token, ?3 owner, ?4 client, ?5 now, ?6 expires, ?7 wall clock
insert into locks (name, token, owner, client, proved, expires, since)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    on conflict (name) do update
   set token = excluded.token, owner = excluded.owner, client = excluded.client,
       proved = excluded.proved, expires = excluded.expires, since = excluded.since
