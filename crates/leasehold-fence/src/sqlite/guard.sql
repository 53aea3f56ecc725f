-- One of the guard's triggers; one each for INSERT, UPDATE and DELETE.
-- leasehold_token() is a function that the writing connection must have: a program without
-- it cannot even prepare a write. A mark that is missing lets nobody in. marks_before.sql knows
-- how the comparison is spelled.
create trigger {trigger} before {event} on {table}
begin
    select case
        when typeof(leasehold_token()) <> 'integer' or leasehold_token() < 0
            then raise(abort, {missing})
        when leasehold_token() < coalesce(
            (select token from leasehold_fence where resource = {resource}), 9223372036854775807)
            then raise(abort, {stale})
    end;
    -- An update and no upsert: an outer INSERT OR REPLACE would override what an upsert
    -- in here says about conflicts.
    update leasehold_fence set token = leasehold_token(), raised_at = current_timestamp
    where resource = {resource} and token < leasehold_token();
end;
