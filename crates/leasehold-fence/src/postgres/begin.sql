-- $1 key, $2 token. Takes over from an older lease that did not finish.
insert into leasehold_fence.outcome as present (key, token) values ($1, $2)
on conflict (key) do update set token = excluded.token, changed_at = now()
where present.outcome is null and present.token <= excluded.token
