-- ?1 lock, ?2 token of twenty digits, so that texts compare as the numbers do.
insert into mark (lock, token) values (?1, ?2)
on conflict (lock) do update set token = excluded.token, raised_at = current_timestamp
where mark.token < excluded.token
