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

-- A negative number is that of a client with sessions of its own. Each of them begins with this,
-- and shares an advisory lock: when the last of them ends, nobody has it any more. (1818583411
-- spells `leas`; other users of advisory locks have other numbers.)
create or replace function leasehold.attend(client bigint) returns void
language plpgsql as $$
begin
    perform set_config('leasehold.client', client::text, false);
    perform pg_advisory_lock_shared(1818583411, (client & 2147483647)::integer);
end
$$;

-- Whether no session of a client is left. Of a client with a positive number nothing is known,
-- and whoever asks is there: its own lock would not be in its way. The lock that is tried is
-- given back at once, since the client may be coming back, and others may ask as well.
create or replace function leasehold.is_gone(client bigint) returns boolean
language sql volatile as $$
    select case
        when client >= 0 or client::text = current_setting('leasehold.client', true) then false
        when pg_try_advisory_lock(1818583411, (client & 2147483647)::integer)
            then pg_advisory_unlock(1818583411, (client & 2147483647)::integer)
        else false end
$$;

-- Lets the first live waiter in if the lock is free or lapsed. The caller has locked its row.
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
    for one in select * from leasehold.waiters where lock = lock_name order by place loop
        -- A queue must not stand still behind a dead waiter (redisson#3004). One whose sessions
        -- are gone keeps its place for as long as it counts as alive: it may come back.
        continue when one.alive > at and leasehold.is_gone(one.client);
        delete from leasehold.waiters where lock = one.lock and place = one.place;
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
    if here.crowded and not exists (select 1 from leasehold.waiters where lock = lock_name) then
        update leasehold.locks set crowded = false where name = lock_name;
    end if;
    return false;
end
$$;

-- Takes each lock that is known here, free and waited for by nobody: which of them, by their
-- places in the batch from 1, and their tokens. The others are for `acquire`.
--
-- Most locks were held before, and an update of a row that is there is much less work than an
-- insert that finds it. Rows are locked in the order of their names, as in renew, and those
-- that are not free not at all. So nothing more may be locked in this transaction, and what is
-- left is asked for in another; who has a row for long is waited for there, and not here.
create or replace function leasehold.take(
    names text[], owners bytea[], ttls bigint[], sent bigint,
    the_client bigint, the_host text, the_pid integer, the_label text,
    out places bigint[], out tokens bigint[]
) language plpgsql set enable_hashjoin = off set enable_seqscan = off
  set lock_timeout = '100ms' as $$
declare
    at  timestamptz := clock_timestamp();
    low bigint := leasehold.clock_floor();
begin
    with taken as (
        update leasehold.locks l
           set token = greatest(l.token + 1, low), owner = u.owner, client = the_client,
               proved = sent, term = u.ttl, expires = at + u.ttl * interval '1 microsecond',
               since = at, host = the_host, pid = the_pid, label = the_label
          from (select * from unnest(names, owners, ttls) with ordinality
                           as b(name, owner, ttl, place)
                 order by b.name collate "C") as u
         where l.name = u.name and not l.crowded
           and (l.owner is null or (l.expires <= at and l.owner <> u.owner))
           and (l.barred is null or u.owner <> all (l.barred))
        returning u.place, l.token
    )
    select array_agg(t.place), array_agg(t.token) into places, tokens from taken t;
end
$$;

-- Takes each lock that is free; where asked, takes a place in the queue. `names` must be in order
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
                -- Who asks is alive, however late it is.
                update leasehold.waiters set alive = at + interval '3 seconds', beat = sent
                 where lock = names[i] and owner = owners[i];
                -- Not to the newcomer: those who wait were here before, if they still are.
                pushed := exists (select 1 from leasehold.waiters w where w.lock = names[i]
                              and w.owner <> owners[i]
                              and w.place < coalesce((select m.place from leasehold.waiters m
                                   where m.lock = names[i] and m.owner = owners[i]), 9223372036854775807))
                    and leasehold.serve(names[i]);
                if pushed then
                    safe := true;
                    select * into here from leasehold.locks where name = names[i];
                    -- It may itself have been the first of them that is left.
                    states[i] := case when here.owner = owners[i] then 0 else 1 end;
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
        -- A place in the queue may be lost in a crash: the waiter asks again.
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

-- Out of the queue, or out of the grant that just came.
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

-- Is it theirs? If not, it never will be: the tombstone is in the lock's own row, so that an
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

-- The server empties an unlogged table when it recovers from a crash, and when a standby is
-- promoted. So no row here means: the last tokens that were drawn may be forgotten.
create unlogged table if not exists leasehold.intact (
    since   timestamptz not null,   -- when the first session of this start of the server began
    started timestamptz             -- which start that is
);
do $$
declare
    wanted text := (select pg_get_userbyid(c.relowner) from pg_class c
                     where c.oid = 'leasehold.tokens'::regclass);
begin
    -- Not without need: it would wait for everybody who reads the table, a pg_dump, say.
    if not exists (select 1 from pg_attribute where attrelid = 'leasehold.intact'::regclass
                      and attname = 'started' and not attisdropped) then
        alter table leasehold.intact add column started timestamptz;
    end if;
    -- lift() runs as the owner of the tables, also when another role brings it up to date.
    if wanted <> (select pg_get_userbyid(c.relowner) from pg_class c
                   where c.oid = 'leasehold.intact'::regclass) then
        execute format('alter table leasehold.intact owner to %I', wanted);
    end if;
end
$$;

-- Lifts the sequence of tokens to the clock, for a session that begins. `owned by none`
-- changes nothing, but takes a lock that keeps every nextval out meanwhile, and what is
-- compared is read under it, the clock included: a bare setval could take back what another
-- one lifted, and a clock that was read before the wait is behind it. (Not a stronger lock: it
-- would wait for everybody who only reads, a pg_dump for hours, and every nextval behind it.)
--
-- A sequence that is ahead of the clock stays where it is. To raise it a step for each session
-- would let it run away, and it would fall when a standby that lags is promoted.
--
-- Sessions do not wait for the disk when they draw a token, so a crash may take back the last
-- ones: at most those of three wal_writer_delays. It ends all sessions, and the first that
-- begins afterwards steps over them, once: no server draws a million tokens in a second. The
-- clock alone would do, unless it was set back.
--
-- Also notes the first session after each start of the server: see hearing().
create or replace function leasehold.lift() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    low   bigint;
    last  bigint;
    drawn boolean;
    start timestamptz := pg_postmaster_start_time();
    here  leasehold.intact;
begin
    perform set_config('synchronous_commit', 'on', true)
      where current_setting('synchronous_commit') = 'off';
    alter sequence leasehold.tokens owned by none;
    low := leasehold.clock_floor();
    select last_value, is_called into last, drawn from leasehold.tokens;
    select * into here from leasehold.intact;
    if not found then
        low := greatest(low, last + greatest(1000000, (select 3000 * setting::bigint
                 from pg_settings where name = 'wal_writer_delay')));
        -- Where no token was ever drawn, nobody has an end to hear of.
        insert into leasehold.intact (since, started) values (
            clock_timestamp() - case when drawn then interval '0' else interval '1 second' end, start);
    elsif here.started is distinct from start or here.since > clock_timestamp() then
        -- Another start; or the clock was set back, and nothing is known of the time since then.
        update leasehold.intact set since = clock_timestamp(), started = start;
    end if;
    if low > last then
        perform setval('leasehold.tokens', least(low, 9007199254740991));
    end if;
end
$$;

-- For how many microseconds more a session that begins takes no lock. The start of a server ended
-- all sessions, and their clients hear of it from their sockets: within milliseconds, on a network that
-- works. So nobody gets a lock in the first second after the first session since then.
create or replace function leasehold.hearing() returns bigint
language sql volatile security definer set search_path = pg_catalog, pg_temp as $$
    select least(1000000, greatest(0,
           1000000 - (date_part('epoch', clock_timestamp() - i.since) * 1000000)::bigint))
      from leasehold.intact i
$$;

-- Which of their revisions these functions are.
create or replace function leasehold.revision() returns integer
language sql immutable as $$ select 8 $$;

insert into leasehold.meta (version) values (1) on conflict do nothing;
