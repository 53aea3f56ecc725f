-- The type below a domain.
create or replace function leasehold_fence.base_type(of_type regtype)
returns regtype language plpgsql stable set search_path = pg_catalog, pg_temp as $$
declare
    base oid := of_type;
    kind "char";
begin
    loop
        select case typtype when 'd' then typbasetype else base end, typtype into base, kind
        from pg_type where oid = base;
        exit when kind <> 'd';
    end loop;
    return base;
end
$$;

-- Whether equal values of a type are spelled alike, as those of a key must be: or its row has
-- one mark by one spelling and none by the other. (1 day is 24 hours, 0 is -0.)
create or replace function leasehold_fence.check_key(of_type regtype)
returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if leasehold_fence.base_type(of_type) not in (
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
-- Times with a zone are spelled in UTC: 2026-01-31T12:00:00+00:00. Texts of the type character have
-- the blanks that their length gives them, and none without a length.
create or replace function leasehold_fence.advance_row(
    of_resource text, key jsonb, with_token bigint)
returns bigint language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    -- So that prepare_table knows of us.
    perform pg_advisory_xact_lock_shared(hashtextextended('leasehold_fence/' || of_resource, 0));
    return leasehold_fence.raise_mark(
        leasehold_fence.row_of(of_resource, key, array(select jsonb_object_keys(key))),
        with_token);
end
$$;
