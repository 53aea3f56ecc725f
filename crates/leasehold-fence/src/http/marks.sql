create table if not exists mark (
    lock text primary key not null,
    token text not null check (length(token) = 20),
    raised_at text not null default current_timestamp
) without rowid;
