-- Marks go by name, and tables get other names: a table that is guarded under a new one (after
-- RENAME, SET SCHEMA, or with another resource) brings its marks along, or an older lease would
-- get past a mark that nobody looks at any more.

-- The resource in a trigger's arguments, which end with a zero byte each.
create or replace function leasehold_fence.first_argument(arguments bytea)
returns text language sql stable set search_path = pg_catalog, pg_temp as $$
    select convert_from(
        substring(arguments from 1 for position(decode('00', 'hex') in arguments) - 1),
        getdatabaseencoding())
$$;

-- The resources that a table was ever guarded as: those of its triggers, and those that
-- prepare_table noted at its CHECK, which stays when the guard is taken off. Both follow the table
-- through RENAME, SET SCHEMA and pg_dump.
create or replace function leasehold_fence.resources(of_table regclass)
returns setof text language sql stable set search_path = pg_catalog, pg_temp as $$
    select leasehold_fence.first_argument(t.tgargs) from pg_trigger t
    where t.tgrelid = of_table and starts_with(t.tgname, 'leasehold_fence_') and t.tgnargs > 0
    union
    select jsonb_array_elements_text(
        substring(obj_description(c.oid, 'pg_constraint') from '^fenced as ([[].*])$')::jsonb)
    from pg_constraint c where c.conrelid = of_table and c.conname = 'leasehold_fence_token'
$$;

-- Copies the marks of resources, and of their rows, to another name; none is lowered. For the
-- rows of a table without a guard, after it was renamed:
-- select leasehold_fence.carry(array['public.jobs'], 'public.old_jobs')
create or replace function leasehold_fence.carry(from_resources text[], to_resource text)
returns void language sql security definer set search_path = pg_catalog, pg_temp as $$
    insert into leasehold_fence.mark as m (resource, token)
    select to_resource || substr(o.resource, length(f.resource) + 1), max(o.token)
    from unnest(from_resources) f (resource)
    join leasehold_fence.mark o
        on o.resource = f.resource or starts_with(o.resource, f.resource || '/')
    where f.resource <> to_resource
    group by 1
    on conflict (resource) do update set token = excluded.token, raised_at = now()
    where m.token < excluded.token
$$;

-- Raises the mark of a resource to a floor, and to the marks of its rows, where it is lower. Without
-- a floor it only looks. Returns the mark.
create or replace function leasehold_fence.seed(of_resource text, least_token bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    rows_mark bigint;
begin
    if least_token is not null then
        select max(m.token) into rows_mark from leasehold_fence.mark m
        where starts_with(m.resource, of_resource || '/{');
        -- A mark that is high enough is left alone: its row may be locked by a transaction that
        -- is about to ask for the table, which our caller has.
        insert into leasehold_fence.mark as m (resource, token)
        select of_resource, floor from greatest(least_token, rows_mark) floor
        where floor > 0 and not exists (
            select from leasehold_fence.mark s where s.resource = of_resource and s.token >= floor)
        on conflict (resource) do update set token = excluded.token, raised_at = now()
        where m.token < excluded.token;
    end if;
    return (select m.token from leasehold_fence.mark m where m.resource = of_resource);
end
$$;
