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

-- Before each row, where each row has a fence of its own. Arguments: the resource, the
-- columns of the primary key. The row's mark is raised each time: it may be higher than
-- what the row says (advance_row), and deleted rows leave it.
create or replace function leasehold_fence.guard_each_row()
returns trigger language plpgsql security definer set search_path = pg_catalog, pg_temp
set timezone = 'UTC' set datestyle = 'ISO' set bytea_output = 'hex' as $$
declare
    token bigint := leasehold_fence.presented(tg_argv[0]);
    key text[] := tg_argv[1]::text[];
    -- Without a length to fill, texts of the type character are equal whatever blanks they end with.
    shows text := (
        select format('select jsonb_build_object(%s)', string_agg(format(
            case when a.atttypmod < 0 and leasehold_fence.base_type(a.atttypid) = 'bpchar'::regtype
                then '%L, rtrim(leasehold_fence.checked(($1).%I)::text, '' '')'
                else '%L, leasehold_fence.checked(($1).%I)' end, c, c), ', '))
        from unnest(key) c
        left join pg_attribute a on a.attrelid = tg_relid and a.attname = c);
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

-- The column, its CHECK, and the marks that the table has from before. Returns the resource's
-- name. The table is locked first: no writer comes between a look at its tokens and its guard.
create or replace function leasehold_fence.prepare_table(target regclass, of_resource text)
returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    resource text;
    before text[];
    old text;
begin
    if not exists (select from pg_class where oid = target and relkind in ('r', 'p')) then
        raise exception '% is no table that can be guarded', target;
    end if;
    if exists (select from pg_inherits where inhrelid = target) then
        raise exception '% is a partition or inherits from another table', target
            using hint = 'Guard the table above it: that guards this one too. By itself it could '
                         'be written through the other.';
    end if;
    if current_setting('transaction_isolation') not in ('read committed', 'read uncommitted') then
        raise exception 'tables are guarded under read committed: this transaction does not see '
            'the tokens that were written since it began'
            using hint = 'begin isolation level read committed';
    end if;
    execute format('lock table %s in access exclusive mode', target);
    -- Only now: it may have been renamed while we waited.
    resource := coalesce(of_resource, target::text);
    before := array(select leasehold_fence.resources(target));
    foreach old in array before loop
        -- Who has raised an old mark and not committed has no lock on the table yet. It may ask
        -- for one: to wait for it here could be a deadlock.
        if old <> resource
            and not pg_try_advisory_xact_lock(hashtextextended('leasehold_fence/' || old, 0))
        then
            raise exception using errcode = '55P03',
                message = format('a transaction with a token of %s is under way', old),
                hint = 'Guard the table again when it has ended.';
        end if;
    end loop;
    perform leasehold_fence.carry(before, resource);
    execute format('alter table %s add column if not exists fence_token bigint not null default 0',
                   target);
    if not exists (select from pg_constraint
                   where conrelid = target and conname = 'leasehold_fence_token') then
        execute format('alter table %s add constraint leasehold_fence_token '
                       'check (fence_token >= 0)', target);
    end if;
    execute format('comment on constraint leasehold_fence_token on %s is %L', target,
                   'fenced as ' || (select jsonb_agg(distinct r)::text
                                    from unnest(before || resource) r));
    return resource;
end
$$;

-- From now on the table takes no INSERT, UPDATE, DELETE, COPY, MERGE or TRUNCATE without a
-- token that is at least the highest that the resource has seen. Tables that share a
-- resource share its mark. Returns the resource; its name is the table's, unless given. A mark
-- begins at the greatest that the table has: of its earlier marks and the tokens of its rows.
-- Again after new partitions were added: only then their own TRUNCATE is guarded.
create or replace function leasehold_fence.guard_table(
    target regclass, of_resource text default null)
returns text language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    resource text := leasehold_fence.prepare_table(target, of_resource);
    partitioned boolean := (select relkind = 'p' from pg_class where oid = target);
    highest bigint;
    member regclass;
begin
    -- What a guard with this mark let in is no higher than it: a large table is not read again.
    if leasehold_fence.seed(resource, null) is null or exists (
        select from leasehold_fence.members(target) m where not exists (
            select from pg_trigger t
            where t.tgrelid = m and t.tgname = 'leasehold_fence_statement' and t.tgenabled <> 'D'
                and leasehold_fence.first_argument(t.tgargs) = resource))
    then
        execute format('select max(fence_token) from %s', target) into highest;
        perform leasehold_fence.seed(resource, coalesce(highest, 0));
    end if;
    perform leasehold_fence.unguard_table(target);
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
    perform leasehold_fence.unguard_table(target);
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
