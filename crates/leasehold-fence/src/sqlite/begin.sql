-- ?1 key, ?2 token. Takes over from an older lease that did not finish.
insert into leasehold_outcome (key, token) values (?1, ?2)
on conflict (key) do update set token = excluded.token, changed_at = current_timestamp
where leasehold_outcome.outcome is null and leasehold_outcome.token <= excluded.token
