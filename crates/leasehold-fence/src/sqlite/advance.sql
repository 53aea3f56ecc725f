-- Raises a mark, or leaves it when it is as high; no row when it is higher. ?1 resource, ?2 token.
insert into leasehold_fence (resource, token) values (?1, ?2)
on conflict (resource) do update set token = excluded.token, raised_at = current_timestamp
where leasehold_fence.token <= excluded.token
