-- Leasehold's tables in PostgreSQL, version 1. Can be run by hand, once, by a role that
-- may create a schema; the roles that lock then need only
--     grant usage on schema leasehold to ROLE;
--     grant select, insert, update, delete on all tables in schema leasehold to ROLE;
--     grant usage, select on all sequences in schema leasehold to ROLE;
-- Moments are the database's own. `proved` and `beat` are a client's clock in nanoseconds:
-- the database only keeps them and hands them back.

create schema if not exists leasehold;

create table if not exists leasehold.meta (
    single   boolean     primary key default true check (single),
    version  integer     not null,
    floor    bigint      not null default 0,    -- no new row gets a token below it
    floor_at timestamptz not null default now() -- since when
);

-- `owner` null: free. A row without an owner only remembers its token.
create table if not exists leasehold.locks (
    name    text        collate "C" primary key,
    token   bigint      not null,
    owner   bytea,
    client  bigint,                 -- where its client listens
    proved  bigint      not null,   -- its client's clock before it asked
    term    bigint      not null,   -- in microseconds, as granted or renewed
    expires timestamptz not null,   -- when it ends, or when it was given back
    since   timestamptz not null,
    host    text,
    pid     integer,
    label   text,
    crowded boolean     not null default false, -- somebody may wait for it
    barred  bytea[],                -- owners that were settled: they may not take it any more
    bars    timestamptz[]           -- until when each of them is
) with (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 1000);

create table if not exists leasehold.waiters (
    lock   text        collate "C" not null,
    place  bigint      generated always as identity,
    owner  bytea       not null,
    client bigint      not null,
    ttl    bigint      not null,
    beat   bigint      not null,    -- its client's clock before the last sign of life
    alive  timestamptz not null,    -- until when it counts as alive
    host   text        not null,
    pid    integer     not null,
    label  text        not null,
    primary key (lock, place)
) with (fillfactor = 70);
create unique index if not exists waiters_by_owner on leasehold.waiters (lock, owner);

-- What was released by force: by whom, and why.
create table if not exists leasehold.audit (
    id     bigint      generated always as identity primary key,
    at     timestamptz not null default clock_timestamp(),
    lock   text        collate "C" not null,
    token  bigint      not null,
    by     text        not null,
    reason text        not null
);
create index if not exists audit_by_lock on leasehold.audit (lock, token);

-- Tokens of session mode, and what its holders say about themselves.
create sequence if not exists leasehold.tokens as bigint minvalue 1 maxvalue 9007199254740991;
create table if not exists leasehold.holds (
    high    bigint      not null,   -- the advisory lock, as pg_locks shows it:
    low     bigint      not null,   -- classid, objid
    form    smallint    not null,   -- and objsubid
    name    text        collate "C" not null,
    token   bigint      not null,
    owner   bytea       not null,
    backend integer     not null,   -- the session that holds it; else the row is stale
    expires timestamptz not null,
    since   timestamptz not null,
    host    text        not null,
    pid     integer     not null,
    label   text        not null,
    primary key (high, low, form, backend)
);

-- The clock as the lowest token. One that reads past the year 2112 is not believed, or it
-- would use up what JavaScript and Lua can carry.
create or replace function leasehold.clock_floor() returns bigint
language plpgsql volatile as $$
declare
    micros bigint := (date_part('epoch', clock_timestamp()) * 1000000)::bigint;
begin
    return case when micros < 4503599627370496 then micros else 0 end;
end
$$;

-- Lets the first live waiter in if the lock is free or lapsed. The caller has locked the here.
-- Whether it granted anything: that must not be lost in a crash.
create or replace function leasehold.serve(lock_name text) returns boolean
language plpgsql as $$
declare
    at  timestamptz := clock_timestamp();
    here leasehold.locks;
    one leasehold.waiters;
begin
    select * into here from leasehold.locks where name = lock_name;
    if not found or (here.owner is not null and here.expires > at) then
        return false;
    end if;
    loop
        select * into one from leasehold.waiters where lock = lock_name order by place limit 1;
        exit when not found;
        delete from leasehold.waiters where lock = one.lock and place = one.place;
        -- A queue must not stand still behind a dead waiter (redisson#3004).
        continue when one.alive <= at;
        -- Short, so that a grant to a waiter that just died lapses soon.
        update leasehold.locks
           set token = greatest(token + 1, leasehold.clock_floor()),
               owner = one.owner, client = one.client, proved = one.beat,
               term = least(one.ttl, 3000000),
               expires = at + least(one.ttl, 3000000) * interval '1 microsecond',
               since = at, host = one.host, pid = one.pid, label = one.label,
               crowded = exists (select 1 from leasehold.waiters where lock = lock_name)
         where name = lock_name
        returning * into here;
        perform pg_notify('leasehold_' || one.client, concat_ws(' ', 'granted',
            encode(one.owner, 'hex'), here.token, here.proved, here.term));
        return true;
    end loop;
    if here.crowded then
        update leasehold.locks set crowded = false where name = lock_name;
    end if;
    return false;
end
$$;

-- Takes each lock that is free; where asked, takes a place in line. `names` must be in order
-- and without doubles. `states` is null when all were granted, else for each
-- 0 granted, 1 held, 2 queued; then `proofs` and `terms` tell of the grants, the rest of holders.
create or replace function leasehold.acquire(
    names text[], owners bytea[], ttls bigint[], queues boolean[], sent bigint,
    the_client bigint, the_host text, the_pid integer, the_label text,
    out tokens bigint[], out states smallint[], out proofs bigint[], out terms bigint[],
    out hosts text[], out pids integer[], out labels text[], out sinces bigint[], out lefts bigint[]
) language plpgsql as $$
declare
    at      timestamptz := clock_timestamp();
    low     bigint := leasehold.clock_floor();
    here    leasehold.locks;
    safe    boolean := false;
    pushed  boolean;
begin
    -- The common case, all at once. Rows are locked in the order of their names, those that
    -- are not free as well.
    with taken as (
        insert into leasehold.locks as l
               (name, token, owner, client, proved, term, expires, since, host, pid, label)
        select w.name, greatest((select floor + 1 from leasehold.meta), low), w.owner, the_client,
               sent, w.ttl, at + w.ttl * interval '1 microsecond', at, the_host, the_pid, the_label
          from unnest(names, owners, ttls) as w(name, owner, ttl)
         order by w.name collate "C"
            on conflict (name) do update
           set token = greatest(l.token + 1, excluded.token), owner = excluded.owner,
               client = excluded.client, proved = excluded.proved, term = excluded.term,
               expires = excluded.expires, since = excluded.since, host = excluded.host,
               pid = excluded.pid, label = excluded.label
         where not l.crowded
           and (l.owner is null or (l.expires <= excluded.since and l.owner <> excluded.owner))
           and (l.barred is null or excluded.owner <> all (l.barred))
        returning l.name, l.token
    )
    select array_agg(t.token order by t.name) into tokens from taken t;
    if cardinality(tokens) = cardinality(names) then
        return;
    end if;
    tokens := '{}';
    for i in 1 .. cardinality(names) loop
        select * into here from leasehold.locks where name = names[i];
        at := clock_timestamp();
        if here.owner = owners[i] and here.expires > at then
            safe := true;
            states[i] := 0;
        elsif owners[i] = any (here.barred) then
            states[i] := 1;
            continue;
        else
            -- The clock was set back: nothing lasts longer than its term from now.
            if here.owner is not null and here.expires > at + here.term * interval '1 microsecond' then
                update leasehold.locks set expires = at + here.term * interval '1 microsecond'
                 where name = names[i] returning * into here;
            end if;
            states[i] := 1;
            if here.owner is null or here.expires <= at then
                delete from leasehold.waiters
                 where lock = names[i] and alive <= at and owner <> owners[i];
                if exists (select 1 from leasehold.waiters w where w.lock = names[i]
                              and w.owner <> owners[i]
                              and w.place < coalesce((select m.place from leasehold.waiters m
                                   where m.lock = names[i] and m.owner = owners[i]), 9223372036854775807))
                then
                    -- Not to the newcomer: those who wait were here before.
                    pushed := leasehold.serve(names[i]);
                    safe := safe or pushed;
                    select * into here from leasehold.locks where name = names[i];
                else
                    delete from leasehold.waiters where lock = names[i] and owner = owners[i];
                    -- An owner whose own lease lapsed, with nobody in between, keeps its token.
                    update leasehold.locks l
                       set token = case when l.owner = owners[i] then l.token
                                   else greatest(l.token + 1, leasehold.clock_floor()) end,
                           owner = owners[i], client = the_client, proved = sent, term = ttls[i],
                           expires = at + ttls[i] * interval '1 microsecond', since = at,
                           host = the_host, pid = the_pid, label = the_label,
                           crowded = exists (select 1 from leasehold.waiters where lock = names[i])
                     where name = names[i] returning * into here;
                    safe := true;
                    states[i] := 0;
                end if;
            end if;
            if states[i] = 1 and queues[i] then
                insert into leasehold.waiters as w
                       (lock, owner, client, ttl, beat, alive, host, pid, label)
                values (names[i], owners[i], the_client, ttls[i], sent,
                        at + interval '3 seconds', the_host, the_pid, the_label)
                    on conflict (lock, owner) do update
                   set beat = excluded.beat, alive = excluded.alive;
                if not here.crowded then
                    update leasehold.locks set crowded = true where name = names[i];
                end if;
                states[i] := 2;
            end if;
        end if;
        tokens[i] := here.token;
        proofs[i] := here.proved;
        terms[i] := here.term;
        hosts[i] := here.host;
        pids[i] := here.pid;
        labels[i] := here.label;
        sinces[i] := (date_part('epoch', here.since) * 1000000)::bigint;
        lefts[i] := (date_part('epoch', here.expires - at) * 1000000)::bigint;
    end loop;
    if not safe then
        -- A place in line may be lost in a crash: the waiter asks again.
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- Says that waiters are alive. States: 0 granted, 1 unknown here, 2 waits, 3 waits, but the
-- lock is free. Takes no lock on a lock's row, so it stands in nobody's way.
create or replace function leasehold.beat(
    names text[], owners bytea[], sent bigint,
    out states smallint[], out tokens bigint[], out proofs bigint[], out terms bigint[],
    out lefts bigint[]
) language plpgsql as $$
declare
    at timestamptz := clock_timestamp();
begin
    perform set_config('synchronous_commit', 'off', true);
    perform 1 from leasehold.waiters w
       join unnest(names, owners) as u(name, owner) on w.lock = u.name and w.owner = u.owner
      order by w.lock, w.place for update of w;
    update leasehold.waiters w set beat = sent, alive = at + interval '3 seconds'
      from unnest(names, owners) as u(name, owner) where w.lock = u.name and w.owner = u.owner;
    select array_agg(case
               when l.owner = u.owner and l.expires > at then 0
               when w.owner is null then 1
               when l.owner is null or l.expires <= at
                 or l.expires > at + l.term * interval '1 microsecond' then 3
               else 2 end order by u.n),
           array_agg(l.token order by u.n), array_agg(l.proved order by u.n),
           array_agg(l.term order by u.n),
           array_agg((date_part('epoch', l.expires - at) * 1000000)::bigint order by u.n)
      into states, tokens, proofs, terms, lefts
      from unnest(names, owners) with ordinality as u(name, owner, n)
      left join leasehold.locks l on l.name = u.name
      left join leasehold.waiters w on w.lock = u.name and w.owner = u.owner;
end
$$;

-- Lets waiters in where a lock is free or lapsed.
create or replace function leasehold.serve_all(names text[]) returns void
language plpgsql as $$
declare
    safe boolean := false;
begin
    perform 1 from leasehold.locks where name = any (names) order by name for update;
    -- The clock was set back: nothing lasts longer than its term from now.
    update leasehold.locks set expires = clock_timestamp() + term * interval '1 microsecond'
     where name = any (names) and owner is not null
       and expires > clock_timestamp() + term * interval '1 microsecond';
    for i in 1 .. cardinality(names) loop
        safe := leasehold.serve(names[i]) or safe;
    end loop;
    if not safe then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- Extends each lease that is still its owner's. `states` is null when all were, else
-- 0 renewed, 1 expired, 2 taken, 3 forced.
--
-- Rows are locked as they are updated, in the order of their names, or two batches could wait
-- for each other: without hash joins and scans of the whole table, every plan that is left
-- goes by the order of the batch or of the index, which are the same. (And none of them gets
-- slower with the versions that a busy table is full of, whatever its statistics say.)
create or replace function leasehold.renew(
    names text[], owners bytea[], tokens bigint[], ttls bigint[], sent bigint,
    out states smallint[], out bys text[], out reasons text[]
) language plpgsql set enable_hashjoin = off set enable_seqscan = off as $$
declare
    kept text[];
begin
    with renewed as (
        update leasehold.locks l
           set proved = sent, term = u.ttl,
               expires = clock_timestamp() + u.ttl * interval '1 microsecond'
          from (select * from unnest(names, owners, tokens, ttls) as b(name, owner, token, ttl)
                 order by b.name collate "C") as u
         where l.name = u.name and l.owner = u.owner and l.token = u.token
           and l.expires > clock_timestamp()
        returning l.name
    )
    select array_agg(name) into kept from renewed;
    if cardinality(kept) = cardinality(names) then
        return;
    end if;
    select array_agg(case
               when u.name = any (kept) then 0
               when a.by is not null then 3
               when l.token > u.token then 2
               else 1 end order by u.n),
           array_agg(a.by order by u.n), array_agg(a.reason order by u.n)
      into states, bys, reasons
      from unnest(names, tokens) with ordinality as u(name, token, n)
      left join leasehold.locks l on l.name = u.name
      left join leasehold.audit a on a.lock = u.name and a.token = u.token;
end
$$;

-- Gives each lock back that is still its owner's. `released` is null when all were.
-- Rows are locked in order, as in renew.
create or replace function leasehold.release(
    names text[], owners bytea[], tokens bigint[], out released boolean[]
) language plpgsql set enable_hashjoin = off set enable_seqscan = off as $$
declare
    freed  text[];
    wanted text[];
    one    text;
    safe   boolean := false;
begin
    with given as (
        update leasehold.locks l
           set owner = null, expires = clock_timestamp()
          from (select * from unnest(names, owners, tokens) as b(name, owner, token)
                 order by b.name collate "C") as u
         where l.name = u.name and l.owner = u.owner and l.token = u.token
           and l.expires > clock_timestamp()
        returning l.name, l.crowded
    )
    select array_agg(name), array_agg(name) filter (where crowded) into freed, wanted from given;
    if wanted is not null then
        foreach one in array wanted loop
            safe := leasehold.serve(one) or safe;
        end loop;
    end if;
    if cardinality(freed) is distinct from cardinality(names) then
        for i in 1 .. cardinality(names) loop
            released[i] := coalesce(names[i] = any (freed), false);
            continue when released[i];
            -- One that lapsed is not the owner's any more, but it need not be in the way of
            -- those who wait. Whoever has the row sees to that: waiting for it would be out
            -- of order.
            perform 1 from leasehold.locks where name = names[i] and owner = owners[i]
                and token = tokens[i] for update skip locked;
            if found then
                update leasehold.locks set owner = null, expires = clock_timestamp()
                 where name = names[i];
                safe := leasehold.serve(names[i]) or safe;
            end if;
        end loop;
    end if;
    if not safe then
        -- A release that is lost in a crash costs the TTL; a grant would cost the lock.
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- Out of the line, or out of the grant that just came.
create or replace function leasehold.leave(lock_name text, lock_owner bytea) returns void
language plpgsql as $$
declare
    safe boolean;
begin
    perform 1 from leasehold.locks where name = lock_name for update;
    delete from leasehold.waiters where lock = lock_name and owner = lock_owner;
    update leasehold.locks set owner = null, expires = clock_timestamp()
     where name = lock_name and owner = lock_owner;
    safe := leasehold.serve(lock_name);
    if not safe then
        perform set_config('synchronous_commit', 'off', true);
    end if;
end
$$;

-- Is it theirs? If not, it never will be: the bar is in the lock's own row, so that an
-- acquire that waits for the row sees it, however old its view of the rest.
create or replace function leasehold.settle(
    names text[], owners bytea[], ttls bigint[],
    out tokens bigint[], out proofs bigint[], out terms bigint[]
) language plpgsql as $$
declare
    at  timestamptz;
    here leasehold.locks;
begin
    insert into leasehold.locks as l (name, token, proved, term, expires, since)
    select u.name, m.floor, 0, 0, clock_timestamp(), clock_timestamp()
      from unnest(names) as u(name), leasehold.meta m order by u.name collate "C"
        on conflict (name) do update set token = l.token;
    for i in 1 .. cardinality(names) loop
        at := clock_timestamp();
        select * into here from leasehold.locks where name = names[i];
        tokens[i] := null;
        proofs[i] := null;
        terms[i] := null;
        if here.owner = owners[i] and here.expires > at then
            tokens[i] := here.token;
            proofs[i] := here.proved;
            terms[i] := here.term;
            continue;
        end if;
        update leasehold.locks l
           set (barred, bars) = (
               select array_agg(b.who), array_agg(b.ends)
                 from (select who, ends from unnest(l.barred, l.bars) as k(who, ends)
                        where ends > at and who <> owners[i]
                       union all
                       -- It outlives any request that may still be under way.
                       select owners[i], at + greatest(ttls[i], 60000000) * interval '1 microsecond'
                      ) as b(who, ends))
         where name = names[i];
        delete from leasehold.waiters where lock = names[i] and owner = owners[i];
        perform leasehold.serve(names[i]);
    end loop;
end
$$;

-- Takes a lock away from its holder, on the record.
create or replace function leasehold.force(lock_name text, the_by text, the_reason text) returns bigint
language plpgsql as $$
declare
    here leasehold.locks;
begin
    select * into here from leasehold.locks
     where name = lock_name and owner is not null and expires > clock_timestamp() for update;
    if here.name is not null then
        insert into leasehold.audit (lock, token, by, reason)
        values (lock_name, here.token, the_by, the_reason);
        update leasehold.locks set owner = null, expires = clock_timestamp() where name = lock_name;
        perform pg_notify('leasehold_' || here.client, 'forced ' || encode(here.owner, 'hex'));
        perform leasehold.serve(lock_name);
    end if;
    return here.token;
end
$$;

-- Forgets what is over. A lock's row goes once the floor has been above its token for a
-- minute: longer than any statement runs that may have read an older floor.
create or replace function leasehold.sweep(idle interval, delay interval) returns bigint
language plpgsql as $$
declare
    highest bigint;
    swept   bigint := 0;
begin
    if not pg_try_advisory_xact_lock(hashtextextended('leasehold.sweep', 0)) then
        return 0;
    end if;
    perform set_config('synchronous_commit', 'off', true);
    if (select floor_at < clock_timestamp() - delay from leasehold.meta) then
        with gone as (
            delete from leasehold.locks where name in (
                select l.name from leasehold.locks l, leasehold.meta m
                 where l.expires < clock_timestamp() - idle and l.token <= m.floor
                   and not l.crowded
                   and clock_timestamp() > all (coalesce(l.bars, '{}'))
                 order by l.name limit 1000 for update of l skip locked)
            returning 1)
        select count(*) into swept from gone;
        select max(token) into highest from leasehold.locks
         where expires < clock_timestamp() - idle;
        update leasehold.meta set floor = highest, floor_at = clock_timestamp()
         where floor < highest;
    end if;
    delete from leasehold.waiters where (lock, place) in (
        select lock, place from leasehold.waiters
         where alive < clock_timestamp() - interval '1 minute' limit 1000 for update skip locked);
    delete from leasehold.audit where at < clock_timestamp() - interval '30 days';
    delete from leasehold.holds h where expires < clock_timestamp() - interval '1 minute'
       and not exists (select 1 from pg_locks p where p.pid = h.backend and p.locktype = 'advisory'
                          and p.classid = h.high and p.objid = h.low and p.objsubid = h.form);
    return swept;
end
$$;

-- Lifts the sequence of tokens to the clock, for a session that begins. `owned by none`
-- changes nothing, but takes a lock that keeps every nextval out meanwhile, and what is
-- compared is read under it: a bare setval could take back what another one lifted. (Not a
-- stronger one: it would wait for everybody who only reads, a pg_dump for hours, and
-- every nextval behind it.)
--
-- Sessions do not wait for the disk when they draw a token, so a crash may take back the
-- last ones. It ends all sessions, and those that begin afterwards come through here: the
-- clock is ahead of every token that was drawn, unless it was set back; then the step is
-- more than is drawn in the moments that a crash takes back.
create or replace function leasehold.lift() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    low  bigint := leasehold.clock_floor();
    last bigint;
begin
    perform set_config('synchronous_commit', 'on', true)
      where current_setting('synchronous_commit') = 'off';
    alter sequence leasehold.tokens owned by none;
    select last_value into last from leasehold.tokens;
    perform setval('leasehold.tokens', case when low > last then low else last + 100000000 end);
end
$$;

insert into leasehold.meta (version) values (1) on conflict do nothing;
