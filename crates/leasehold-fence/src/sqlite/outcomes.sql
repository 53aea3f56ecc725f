create table if not exists leasehold_outcome (
    key text primary key not null,
    token integer not null,
    outcome blob,
    changed_at text not null default current_timestamp
) without rowid;
create index if not exists leasehold_outcome_age on leasehold_outcome (changed_at)
where outcome is not null;
