-- ?1 key, ?2 token.
insert into leasehold_fence (resource, token) select {resource} || quote($1), $2 where true
on conflict (resource) do update set token = excluded.token, raised_at = current_timestamp
where leasehold_fence.token <= excluded.token
