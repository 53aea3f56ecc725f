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

-- What raises marks runs as its owner, so that who writes needs no right to do it. It touches
-- no column of the table but those of a key, whose types are checked: code of the table's
-- owner (a cast, an operator) must not run in the name of ours.

-- Before each statement that writes, TRUNCATE included; before each row where the statement
-- may have gone straight to a partition. Argument: the resource.
create or replace function leasehold_fence.guard_statement()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform leasehold_fence.advance(tg_argv[0], leasehold_fence.presented(tg_argv[0]));
    if tg_level = 'STATEMENT' then
        return null;
    elsif tg_op = 'DELETE' then
        return old;
    end if;
    return new;
end
$$;

-- Before each row: writes down whose it is. Arguments: the resource; 'each' where each row has
-- a fence of its own.
create or replace function leasehold_fence.guard_row()
returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    token bigint := leasehold_fence.presented(tg_argv[0]);
begin
    if tg_argv[1] = 'each' and tg_op <> 'INSERT' then
        if old.fence_token > token then
            perform leasehold_fence.stale(tg_argv[0], token, old.fence_token);
        end if;
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    new.fence_token := token;
    return new;
end
$$;

-- Whether equal values of a type are spelled alike, as those of a key must be: or its row has
-- one mark by one spelling and none by the other. (1 day is 24 hours, 0 is -0.)
create or replace function leasehold_fence.check_key(of_type regtype)
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    base oid := of_type;
    kind "char";
begin
    loop
        select case typtype when 'd' then typbasetype else base end, typtype into base, kind
        from pg_type where oid = base;
        exit when kind <> 'd';
    end loop;
    if base::regtype not in (
        'smallint', 'integer', 'bigint', 'numeric', 'oid', 'boolean', 'text', 'varchar', 'bpchar',
        'name', 'bytea', 'uuid', 'date', 'timestamp', 'timestamptz', 'inet', 'macaddr')
    then
        raise exception 'a key of type % cannot be fenced: its equal values may be spelled '
            'differently', of_type
            using hint = 'Use a column of type bigint, uuid or text.';
    end if;
end
$$;

create or replace function leasehold_fence.checked(key anyelement)
returns anyelement language plpgsql stable set search_path = pg_catalog, pg_temp as $$
begin
    perform leasehold_fence.check_key(pg_typeof(key));
    return key;
end
$$;

-- The name of a row's mark: by its table, however that was written, and its key, whatever
-- the session's settings are.
create or replace function leasehold_fence.mark_of(of_table regclass, key anyelement)
returns text language plpgsql stable set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set datestyle = 'ISO' set bytea_output = 'hex' as $$
begin
    perform leasehold_fence.check_key(pg_typeof(key));
    if jsonb_typeof(to_jsonb(key)) = 'number' then
        return of_table::text || '/' || trim_scale(key::text::numeric)::text;
    end if;
    return of_table::text || '/' || key::text;
end
$$;

-- The name of the mark of a row of a table with a fence for each row: the resource and the
-- columns of the primary key, as JSON. Numbers without trailing zeros: 1 is 1.0.
create or replace function leasehold_fence.row_of(of_resource text, record jsonb, key text[])
returns text language sql immutable set search_path = pg_catalog, pg_temp as $$
    select of_resource || '/' || jsonb_object_agg(c, case jsonb_typeof(record -> c)
        when 'number' then to_jsonb(trim_scale((record ->> c)::numeric))
        else record -> c end)::text
    from unnest(key) c
$$;

-- Raises the mark of one row of a table that has a fence for each row. The key as JSON:
-- select leasehold_fence.advance_row('public.seats', '{"hall": 1, "seat": 7}', 34)
-- Times with a zone are spelled in UTC: 2026-01-31T12:00:00+00:00.
create or replace function leasehold_fence.advance_row(
    of_resource text, key jsonb, with_token bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    return leasehold_fence.raise_mark(
        leasehold_fence.row_of(of_resource, key, array(select jsonb_object_keys(key))),
        with_token);
end
$$;

-- Before each row, where each row has a fence of its own. Arguments: the resource, the
-- columns of the primary key. The row's mark is raised each time: it may be higher than
-- what the row says (advance_row), and deleted rows leave it.
create or replace function leasehold_fence.guard_each_row()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set datestyle = 'ISO' set bytea_output = 'hex' as $$
declare
    token bigint := leasehold_fence.presented(tg_argv[0]);
    key text[] := tg_argv[1]::text[];
    shows text := (
        select format('select jsonb_build_object(%s)',
                      string_agg(format('%L, leasehold_fence.checked(($1).%I)', c, c), ', '))
        from unnest(key) c);
    shown jsonb;
    before text;
    after text;
begin
    if tg_op <> 'INSERT' then
        execute shows into shown using old;
        before := leasehold_fence.row_of(tg_argv[0], shown, key);
        perform leasehold_fence.raise_mark(before, token);
    end if;
    if tg_op = 'DELETE' then
        return old;
    end if;
    execute shows into shown using new;
    after := leasehold_fence.row_of(tg_argv[0], shown, key);
    if after is distinct from before then
        perform leasehold_fence.raise_mark(after, token);
    end if;
    return new;
end
$$;

create or replace function leasehold_fence.guard_truncate()
returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    raise exception using errcode = 'LH002',
        message = format('TRUNCATE would forget the tokens of the rows of %s', tg_argv[0]),
        detail = format('resource=%s', tg_argv[0]),
        hint = 'Delete the rows instead.';
end
$$;

-- The table and what inherits from it, partitions included.
create or replace function leasehold_fence.members(of_table regclass)
returns setof regclass language sql stable set search_path = pg_catalog, pg_temp as $$
    with recursive member(id) as (
        select of_table::oid
        union
        select i.inhrelid from pg_inherits i join member on i.inhparent = member.id
    )
    select id::regclass from member
$$;

create or replace function leasehold_fence.unguard_table(target regclass)
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    member regclass;
    guard text;
begin
    for member in select * from leasehold_fence.members(target) loop
        for guard in
            select t.tgname from pg_trigger t
            where t.tgrelid = member and t.tgname like 'leasehold\_fence\_%' and t.tgparentid = 0
        loop
            execute format('drop trigger if exists %I on %s', guard, member);
        end loop;
    end loop;
end
$$;

-- The column, and its CHECK. Returns the resource's name.
create or replace function leasehold_fence.prepare_table(target regclass, of_resource text)
returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if not exists (select from pg_class where oid = target and relkind in ('r', 'p')) then
        raise exception '% is no table that can be guarded', target;
    end if;
    if exists (select from pg_inherits where inhrelid = target) then
        raise exception '% is a partition or inherits from another table', target
            using hint = 'Guard the table above it: that guards this one too. By itself it could '
                         'be written through the other.';
    end if;
    execute format('alter table %s add column if not exists fence_token bigint not null default 0',
                   target);
    if not exists (select from pg_constraint
                   where conrelid = target and conname = 'leasehold_fence_token') then
        execute format('alter table %s add constraint leasehold_fence_token '
                       'check (fence_token >= 0)', target);
    end if;
    perform leasehold_fence.unguard_table(target);
    return coalesce(of_resource, target::text);
end
$$;

-- From now on the table takes no INSERT, UPDATE, DELETE, COPY, MERGE or TRUNCATE without a
-- token that is at least the highest that the resource has seen. Tables that share a
-- resource share its mark. Returns the resource; its name is the table's, unless given.
-- Again after new partitions were added: only then their own TRUNCATE is guarded.
create or replace function leasehold_fence.guard_table(
    target regclass, of_resource text default null)
returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    resource text := leasehold_fence.prepare_table(target, of_resource);
    partitioned boolean := (select relkind = 'p' from pg_class where oid = target);
    member regclass;
begin
    for member in select * from leasehold_fence.members(target) loop
        execute format('create trigger leasehold_fence_statement '
                       'before insert or update or delete or truncate on %s '
                       'for each statement execute function leasehold_fence.guard_statement(%L)',
                       member, resource);
        if not partitioned then
            execute format('create trigger leasehold_fence_row before insert or update on %s '
                           'for each row execute function leasehold_fence.guard_row(%L)',
                           member, resource);
        end if;
    end loop;
    if partitioned then
        -- Row triggers of a partitioned table come to its later partitions by themselves.
        execute format('create trigger leasehold_fence_mark '
                       'before insert or update or delete on %s '
                       'for each row execute function leasehold_fence.guard_statement(%L)',
                       target, resource);
        execute format('create trigger leasehold_fence_row before insert or update on %s '
                       'for each row execute function leasehold_fence.guard_row(%L)',
                       target, resource);
    end if;
    return resource;
end
$$;

-- The same with a fence for each row, by the table's primary key: for locks per row.
create or replace function leasehold_fence.guard_rows(
    target regclass, of_resource text default null)
returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    resource text := leasehold_fence.prepare_table(target, of_resource);
    partitioned boolean := (select relkind = 'p' from pg_class where oid = target);
    key text[];
    member regclass;
begin
    perform leasehold_fence.check_key(a.atttypid::regtype)
    from pg_index i join pg_attribute a on a.attrelid = target and a.attnum = any (i.indkey)
    where i.indrelid = target and i.indisprimary;
    if exists (
        select from pg_index i
        join pg_attribute a on a.attrelid = target and a.attnum = any (i.indkey)
        join pg_collation c on c.oid = a.attcollation
        where i.indrelid = target and i.indisprimary and not c.collisdeterministic)
    then
        raise exception 'the primary key of % has a collation by which different texts are equal',
            target;
    end if;
    select array_agg(a.attname::text order by a.attnum) into key
    from pg_index i join pg_attribute a on a.attrelid = target and a.attnum = any (i.indkey)
    where i.indrelid = target and i.indisprimary;
    if key is null then
        raise exception '% has no primary key, so its rows cannot be told apart', target;
    end if;
    for member in select * from leasehold_fence.members(target) loop
        execute format('create trigger leasehold_fence_truncate before truncate on %s '
                       'for each statement execute function leasehold_fence.guard_truncate(%L)',
                       member, resource);
        if member = target or not partitioned then
            execute format('create trigger leasehold_fence_mark '
                           'before insert or update or delete on %s '
                           'for each row execute function leasehold_fence.guard_each_row(%L, %L)',
                           member, resource, key);
            execute format('create trigger leasehold_fence_row '
                           'before insert or update or delete on %s '
                           'for each row execute function leasehold_fence.guard_row(%L, ''each'')',
                           member, resource);
        end if;
    end loop;
    return resource;
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
    leasehold_fence.mark_of(regclass, anyelement), leasehold_fence.check_key(regtype)
    to public;
