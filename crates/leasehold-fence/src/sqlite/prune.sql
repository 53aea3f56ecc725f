-- Removes the oldest outcomes that are too old. ?1 seconds, ?2 how many at most.
delete from leasehold_outcome where key in (
    select key from leasehold_outcome
    where outcome is not null and changed_at < datetime('now', '-' || ?1 || ' seconds')
    order by changed_at limit ?2)
