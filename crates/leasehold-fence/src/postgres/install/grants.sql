-- A mark that is too high shuts everybody out: who may raise marks is the owner's to say.
-- Writers to guarded tables need none of this. Who advances before reading, or writes
-- single rows conditionally:
--     grant execute on function leasehold_fence.advance(text, bigint),
--         leasehold_fence.advance_row(text, jsonb, bigint),
--         leasehold_fence.raise_mark(text, bigint) to writers;
-- and who guards tables without having installed this:
--     grant execute on all functions in schema leasehold_fence to owners;
revoke execute on all functions in schema leasehold_fence from public;
grant execute on function
    leasehold_fence.presented(text), leasehold_fence.stale(text, bigint, bigint),
    leasehold_fence.mark_of(regclass, anyelement), leasehold_fence.check_key(regtype),
    leasehold_fence.base_type(regtype)
    to public;
