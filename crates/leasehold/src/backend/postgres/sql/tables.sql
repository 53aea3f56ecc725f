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
    client  bigint,                 -- where its client listens; if negative, see leasehold.attend
    proved  bigint      not null,   -- its client's clock before it asked
    term    bigint      not null,   -- in microseconds, as granted or renewed
    expires timestamptz not null,   -- when it ends, or when it was given back
    since   timestamptz not null,
    host    text,
    pid     integer,
    label   text,
    crowded boolean     not null default false, -- somebody may wait for it
    barred  bytea[],                -- tombstones: owners that were settled may not take it any more
    bars    timestamptz[]           -- until when each of them may not
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
