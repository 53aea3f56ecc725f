-- The highest token seen, by resource: a table, a name of your choice, a deleted row.
create table if not exists leasehold_fence (
    resource text primary key not null,
    token integer not null check (typeof(token) = 'integer' and token >= 0),
    raised_at text not null default current_timestamp
) without rowid;
