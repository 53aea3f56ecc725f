-- Removes the oldest outcomes that are too old. $1 seconds, $2 how many at most. An array, so that
-- the rows are always found by their key.
delete from leasehold_fence.outcome where key = any (array(
    select key from leasehold_fence.outcome
    where outcome is not null and changed_at < now() - make_interval(secs => $1)
    order by changed_at limit $2 for update skip locked))
