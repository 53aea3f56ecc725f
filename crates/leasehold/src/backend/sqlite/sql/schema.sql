-- Version 1. Moments are nanoseconds on the machine's boot-time clock, `since` and
-- `at` are microseconds of the wall clock, owners are 16 bytes.

create table meta (
    only    integer primary key check (only = 1),
    boot    text    not null,   -- the kernel's boot id: what is below belongs to it
    floor   integer not null,   -- at least every token of a row that was deleted
    ceiling integer not null    -- fsynced before any token beyond it is granted
) strict;

-- A process as it introduced itself; one row per store opened and label.
create table clients (
    id        integer primary key autoincrement,    -- an id is cached: never reused
    host      text    not null,
    pid       integer not null,
    label     text    not null,
    started   integer,          -- /proc/<pid>/stat, field 22; null: could not be seen
    namespace text,             -- its pid namespace; null: unknown
    bell      text    not null,
    process_group integer       -- acts under its leases as well; null: none
) strict;

-- `owner` null: free. A row without an owner only remembers its token.
create table locks (
    name    text    primary key,
    token   integer not null,
    owner   blob,
    client  integer,
    proved  integer not null,   -- when the lease was granted
    expires integer not null,   -- when it ends, or when it was given back
    since   integer not null
) strict, without rowid;

create table waiters (
    lock        text    not null,
    sequence    integer not null,
    owner       blob    not null,
    client      integer not null,
    ttl         integer not null,
    alive_until integer not null,
    primary key (lock, sequence)
) strict, without rowid;
create unique index waiters_by_owner on waiters (lock, owner);

-- Tombstones: owners that may not acquire any more, because they were settled.
create table bars (
    owner blob    primary key,
    until integer not null
) strict, without rowid;

create table audit (
    id     integer primary key,
    at     integer not null,
    lock   text    not null,
    owner  blob    not null,
    token  integer not null,
    by     text    not null,
    reason text    not null
) strict;
create index audit_by_lock on audit (lock, token);
