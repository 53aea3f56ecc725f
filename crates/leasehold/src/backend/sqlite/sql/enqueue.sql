-- The end of the queue; an owner that already waits keeps its place.
-- (`select ?1` because SQLite compiles a statement anew when a bound value may influence
-- an order or a maximum, and a cached statement's bindings are cleared.)
-- ?1 lock, ?2 owner, ?3 client, ?4 ttl, ?5 alive until
insert into waiters (lock, sequence, owner, client, ttl, alive_until)
select ?1, coalesce(max(sequence), 0) + 1, ?2, ?3, ?4, ?5 from waiters where lock = (select ?1)
    on conflict (lock, owner) do update set alive_until = excluded.alive_until
