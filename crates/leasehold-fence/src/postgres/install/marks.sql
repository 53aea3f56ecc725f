-- The fence's own schema: marks, the functions that check, the guards of tables.
-- Works from psql and from every language; may be run again.
--
-- SQLSTATE LH001: the token is stale (DETAIL: given=… seen=… resource=…)
-- SQLSTATE LH002: there is no token, or a write that no token can allow
--
-- Every function pins its search_path, so that no table, function or operator that a
-- caller puts in the way is used instead.

-- Two at once would both find nothing and both create it.
select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('leasehold_fence', 0));

create schema if not exists leasehold_fence;
grant usage on schema leasehold_fence to public;

-- The highest token seen, by resource: a table, a name of your choice, a row.
create table if not exists leasehold_fence.mark (
    resource text primary key,
    token bigint not null check (token >= 0),
    raised_at timestamptz not null default now()
);

-- What ran once, and what came of it.
create table if not exists leasehold_fence.outcome (
    key text primary key,
    token bigint not null check (token >= 0),
    outcome bytea,
    changed_at timestamptz not null default now()
);
create index if not exists outcome_age on leasehold_fence.outcome (changed_at)
where outcome is not null;

create or replace function leasehold_fence.stale(of_resource text, given bigint, seen bigint)
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using
        errcode = 'LH001',
        message = format('stale fencing token %s for %s: a newer holder with %s has been here',
                         given, of_resource, seen),
        detail = format('given=%s seen=%s resource=%s', given, seen, of_resource),
        hint = 'Nothing was written. Stop the work and take the lock again.';
end
$$;

-- Raises a mark, or fails with LH001. Until the transaction ends it has the row's lock, also
-- when it changes nothing.
create or replace function leasehold_fence.raise_mark(of_resource text, with_token bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    seen bigint;
begin
    if of_resource is null or with_token is null or with_token < 0 then
        raise exception using errcode = 'LH002',
            message = format('no fencing token for %s', of_resource);
    end if;
    insert into leasehold_fence.mark as m (resource, token) values (of_resource, with_token)
    on conflict (resource) do update set token = excluded.token, raised_at = now()
    where m.token < excluded.token;
    select m.token into seen from leasehold_fence.mark m where m.resource = of_resource;
    if seen > with_token then
        perform leasehold_fence.stale(of_resource, with_token, seen);
    end if;
    return with_token;
end
$$;

-- Raises the mark of a resource to a token, or fails with LH001. Until the transaction ends
-- no other token gets past the mark: so an older one cannot commit after a newer one did.
-- Runs as its owner: who writes needs no right to the marks, and cannot lower them.
--
-- Transactions of the same lease go on together. They queue for an advisory lock, and not only
-- for the row: there a shared lock overtakes whoever waits to raise the mark, and a busy pool
-- of the old lease would keep the new one out for ever.
create or replace function leasehold_fence.advance(of_resource text, with_token bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    queue bigint := hashtextextended('leasehold_fence/' || of_resource, 0);
    seen bigint;
begin
    -- Looked at without a lock first, for two that share a lower mark could not both raise it.
    select m.token into seen from leasehold_fence.mark m where m.resource = of_resource;
    if seen = with_token then
        perform pg_advisory_xact_lock_shared(queue);
        -- Again, for it may have been raised while we waited. With a lock on the row: a
        -- transaction with an old snapshot fails then instead of reading the old mark.
        select m.token into seen from leasehold_fence.mark m
        where m.resource = of_resource for share;
        if seen = with_token then
            return with_token;
        end if;
        -- It was raised beyond us, or forgotten.
        return leasehold_fence.raise_mark(of_resource, with_token);
    end if;
    perform pg_advisory_xact_lock(queue);
    return leasehold_fence.raise_mark(of_resource, with_token);
end
$$;

-- The token of this transaction: select set_config('leasehold.token', '<token>', true).
create or replace function leasehold_fence.presented(for_resource text)
returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    given text := current_setting('leasehold.token', true);
begin
    if given is null or given !~ '^[0-9]{1,19}$' then
        raise exception using
            errcode = 'LH002',
            message = format('no fencing token for %s', for_resource),
            detail = format('resource=%s', for_resource),
            hint = 'Take the lock, then in the transaction of the write: '
                   'select set_config(''leasehold.token'', ''<token>'', true)';
    end if;
    return given::bigint;
end
$$;

-- Forgets marks that were not raised for so long: those of deleted rows, mostly. Only for
-- longer than any holder can possibly sleep. Needs the right to delete marks.
create or replace function leasehold_fence.forget(older_than interval)
returns bigint language sql set search_path = pg_catalog, pg_temp as $$
    with gone as (
        delete from leasehold_fence.mark where raised_at < now() - older_than returning 1
    )
    select count(*) from gone
$$;
