//! What the server is asked in session mode.

use tokio_postgres::types::Type;

use super::super::connection::Statement as Verb;

/// Tries each key; then draws one token for all that were got. Each of them is held by then,
/// so whoever gets one next draws later, and tokens need only rise lock by lock.
pub(super) const TRY: Verb = Verb {
    sql: "with got as materialized (select array_agg(pg_try_advisory_lock(key)) as keys \
          from (select unnest($1) as key) as k) \
          select keys, case when true = any (keys) then nextval('leasehold.tokens') end from got",
    types: &[Type::INT8_ARRAY],
    number: 0,
};

/// The same for one key alone.
pub(super) const TRY_ONE: Verb = Verb {
    sql: "select case when pg_try_advisory_lock($1) then nextval('leasehold.tokens') end",
    types: &[Type::INT8],
    number: 18,
};

pub(super) const TRY_TWO: Verb = Verb {
    sql: "select case when pg_try_advisory_lock($1, $2) then nextval('leasehold.tokens') end",
    types: &[Type::INT4, Type::INT4],
    number: 1,
};

/// Blocks until the lock is got; only then is a token drawn. (The function gives nothing,
/// but not null.)
pub(super) const BLOCK: Verb = Verb {
    sql: "select case when pg_advisory_lock($1) is not null then nextval('leasehold.tokens') end",
    types: &[Type::INT8],
    number: 2,
};

pub(super) const BLOCK_TWO: Verb = Verb {
    sql: "select case when pg_advisory_lock($1, $2) is not null \
          then nextval('leasehold.tokens') end",
    types: &[Type::INT4, Type::INT4],
    number: 3,
};

pub(super) const UNLOCK: Verb = Verb {
    sql: "select array_agg(pg_advisory_unlock(key)) from (select unnest($1) as key) as k",
    types: &[Type::INT8_ARRAY],
    number: 4,
};

pub(super) const UNLOCK_ONE: Verb =
    Verb { sql: "select pg_advisory_unlock($1)", types: &[Type::INT8], number: 19 };

pub(super) const UNLOCK_TWO: Verb =
    Verb { sql: "select pg_advisory_unlock($1, $2)", types: &[Type::INT4, Type::INT4], number: 5 };

/// Whether this session has each of these locks, as pg_locks shows them.
pub(super) const PROVE: Verb = Verb {
    sql: include_str!("prove.sql"),
    types: &[Type::INT8_ARRAY, Type::INT8_ARRAY, Type::INT2_ARRAY],
    number: 6,
};

pub(super) const PING: Verb = Verb { sql: "select 1", types: &[], number: 7 };

pub(super) const LOOK: Verb =
    Verb { sql: include_str!("look.sql"), types: &[Type::INT8, Type::INT8, Type::INT2], number: 8 };

pub(super) const LIST: Verb = Verb { sql: include_str!("list.sql"), types: &[], number: 9 };

/// What holders say about themselves, for those who look.
pub(super) const PUBLISH: Verb = Verb {
    sql: include_str!("publish.sql"),
    types: &[
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::TEXT_ARRAY,
        Type::INT8_ARRAY,
        Type::BYTEA_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::TEXT,
        Type::INT4,
        Type::TEXT,
    ],
    number: 10,
};

pub(super) const RETRACT: Verb = Verb {
    sql: "delete from leasehold.holds h \
          using unnest($1, $2, $3, $4, $5) as u(high, low, form, backend, token) \
          where h.high = u.high and h.low = u.low and h.form = u.form \
          and h.backend = u.backend and h.token = u.token",
    types: &[
        Type::INT8_ARRAY,
        Type::INT8_ARRAY,
        Type::INT2_ARRAY,
        Type::INT4_ARRAY,
        Type::INT8_ARRAY,
    ],
    number: 11,
};

pub(super) const AUDITED: Verb = Verb {
    sql: "select lock, token, by, reason from leasehold.audit \
          where (lock, token) in (select * from unnest($1, $2))",
    types: &[Type::TEXT_ARRAY, Type::INT8_ARRAY],
    number: 12,
};

pub(super) const LAST_FORCED: Verb = Verb {
    sql: "select by, reason, (date_part('epoch', at) * 1000000)::bigint, token \
          from leasehold.audit where lock = $1 order by id desc limit 1",
    types: &[Type::TEXT],
    number: 13,
};

pub(super) const RECORD: Verb = Verb {
    sql: "insert into leasehold.audit (lock, token, by, reason) values ($1, $2, $3, $4)",
    types: &[Type::TEXT, Type::INT8, Type::TEXT, Type::TEXT],
    number: 14,
};

/// How many advisory locks a backend has in this database.
pub(super) const COUNT: Verb = Verb {
    sql: "select count(*) from pg_locks where locktype = 'advisory' and granted and pid = $1",
    types: &[Type::INT4],
    number: 15,
};

pub(super) const TERMINATE: Verb =
    Verb { sql: "select pg_terminate_backend($1)", types: &[Type::INT4], number: 16 };

pub(super) const SWEEP: Verb = Verb {
    sql: "select leasehold.sweep(interval '1 hour', interval '1 minute')",
    types: &[],
    number: 17,
};
