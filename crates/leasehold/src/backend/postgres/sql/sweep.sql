-- Forgets locks that are over, a page of the table at a time: each page is a transaction of its own,
-- and short, so that nobody waits for long for a row that goes. Any number of pages in a row keeps up
-- with any rate of new names.
--
-- A lock's row goes when it has been idle for so long, once the floor has been above its token for
-- `delay`: longer than any statement runs that may have read an older floor.
--
-- Takes the name after which the page begins, and the highest idle token of the pages before it. Gives
-- the same for the next page, and how many rows went. `last` is null at the end of the table, where the
-- floor rises to what was seen; and when there is nothing to do, since another sweeps or has just done so.
create or replace function leasehold.sweep_page(
    after text, seen bigint, idle interval, delay interval,
    out last text, out highest bigint, out swept bigint
) language plpgsql as $$
declare
    size constant bigint := 2000;
    at   timestamptz := clock_timestamp();
    low  bigint;
    many bigint;
begin
    highest := seen;
    swept := 0;
    if not pg_try_advisory_xact_lock(hashtextextended('leasehold.sweep', 0)) then
        return;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    -- The clock was set back: how long the floor has been there is not known.
    update leasehold.meta set floor_at = at where floor_at > at;
    select m.floor into low from leasehold.meta m where m.floor_at < at - delay;
    if not found then
        return;
    end if;
    with page as materialized (
        select l.name, l.token, l.expires < at - idle as over from leasehold.locks l
         where l.name > after order by l.name limit size),
    gone as (
        delete from leasehold.locks where name in (
            select l.name from leasehold.locks l
             where l.name in (select p.name from page p where p.over and p.token <= low)
               and l.expires < at - idle and l.token <= low and not l.crowded
               and at > all (coalesce(l.bars, '{}'))
               for update of l skip locked)
        returning 1)
    select max(p.name), count(*), greatest(seen, max(p.token) filter (where p.over)),
           (select count(*) from gone)
      into last, many, highest, swept from page p;
    if many < size then
        last := null;
        update leasehold.meta m set floor = greatest(m.floor, highest), floor_at = clock_timestamp();
    end if;
end
$$;

-- Forgets what else is over; of locks only what a few pages of the table bring. Programs that do not
-- know of pages call it, and the others after the last page.
create or replace function leasehold.sweep(idle interval, delay interval) returns bigint
language plpgsql as $$
declare
    page  record;
    after text := '';
    seen  bigint;
    swept bigint := 0;
begin
    -- Few of them: this is one statement, and others wait behind it on its connection.
    for number in 1 .. 3 loop
        exit when after is null or swept >= 1000;
        select * into page from leasehold.sweep_page(after, seen, idle, delay);
        after := page.last;
        seen := page.highest;
        swept := swept + page.swept;
    end loop;
    perform set_config('synchronous_commit', 'off', true);
    delete from leasehold.waiters where (lock, place) in (
        select lock, place from leasehold.waiters
         where alive < clock_timestamp() - interval '1 minute' limit 10000 for update skip locked);
    delete from leasehold.audit where at < clock_timestamp() - interval '30 days';
    delete from leasehold.holds h where expires < clock_timestamp() - interval '1 minute'
       and not exists (select 1 from pg_locks p where p.pid = h.backend and p.locktype = 'advisory'
                          and p.classid = h.high and p.objid = h.low and p.objsubid = h.form);
    return swept;
end
$$;
