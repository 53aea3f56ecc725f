-- ?1 the row's mark, ?2 token.
insert into leasehold_fence (resource, token) values (?1, ?2)
on conflict (resource) do update set token = excluded.token, raised_at = current_timestamp
where leasehold_fence.token <= excluded.token
