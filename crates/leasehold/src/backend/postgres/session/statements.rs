//! The statements of session mode.

use tokio_postgres::types::Type;

use super::super::connection::statements;
use super::Statement;

statements! {
    /// Tries each key; then draws one token for all that were got. Each of them is held by then,
    /// so whoever gets one next draws later, and tokens need only rise lock by lock.
    TRY(INT8_ARRAY) =
        "with got as materialized (select array_agg(pg_try_advisory_lock(key)) as keys \
         from (select unnest($1) as key) as k) \
         select keys, case when true = any (keys) then nextval('leasehold.tokens') end from got";

    /// The same for one key alone.
    TRY_ONE(INT8) = "select case when pg_try_advisory_lock($1) then nextval('leasehold.tokens') end";
    TRY_TWO(INT4, INT4) =
        "select case when pg_try_advisory_lock($1, $2) then nextval('leasehold.tokens') end";

    /// Blocks until the lock is got; only then is a token drawn. (The function gives nothing,
    /// but not null.)
    BLOCK(INT8) =
        "select case when pg_advisory_lock($1) is not null then nextval('leasehold.tokens') end";
    BLOCK_TWO(INT4, INT4) =
        "select case when pg_advisory_lock($1, $2) is not null \
         then nextval('leasehold.tokens') end";

    UNLOCK(INT8_ARRAY) =
        "select array_agg(pg_advisory_unlock(key)) from (select unnest($1) as key) as k";
    UNLOCK_ONE(INT8) = "select pg_advisory_unlock($1)";
    UNLOCK_TWO(INT4, INT4) = "select pg_advisory_unlock($1, $2)";

    /// Whether this session has each of these locks, as pg_locks shows them.
    PROVE(INT8_ARRAY, INT8_ARRAY, INT2_ARRAY) = include_str!("sql/prove.sql");

    PING() = "select 1";

    LOOK(INT8, INT8, INT2) = concat!(
        "-- Who holds an advisory lock, and how many wait for it.\n\
         -- $1 classid, $2 objid, $3 objsubid, as pg_locks shows them\n",
        include_str!("sql/seen.sql"),
        "   and l.classid = $1::oid and l.objid = $2::oid and l.objsubid = $3\n",
    );

    LIST() = concat!(
        "-- Who holds or waits for any advisory lock of this database, but for those by which \
         clients in\n\
         -- lease mode say that they are there (leasehold.attend).\n",
        include_str!("sql/seen.sql"),
        "   and not (l.classid = 1818583411 and l.objsubid = 2 and l.mode = 'ShareLock')\n",
    );

    /// What holders say about themselves, for those who look.
    PUBLISH(
        INT8_ARRAY, INT8_ARRAY, INT2_ARRAY, TEXT_ARRAY, INT8_ARRAY, BYTEA_ARRAY, INT4_ARRAY,
        INT8_ARRAY, INT8_ARRAY, TEXT, INT4, TEXT
    ) = include_str!("sql/publish.sql");

    RETRACT(INT8_ARRAY, INT8_ARRAY, INT2_ARRAY, INT4_ARRAY, INT8_ARRAY) =
        "delete from leasehold.holds h \
         using unnest($1, $2, $3, $4, $5) as u(high, low, form, backend, token) \
         where h.high = u.high and h.low = u.low and h.form = u.form \
         and h.backend = u.backend and h.token = u.token";

    AUDITED(TEXT_ARRAY, INT8_ARRAY) =
        "select lock, token, by, reason from leasehold.audit \
         where (lock, token) in (select * from unnest($1, $2))";
    LAST_FORCED(TEXT) =
        "select by, reason, (date_part('epoch', at) * 1000000)::bigint, token \
         from leasehold.audit where lock = $1 order by id desc limit 1";
    RECORD(TEXT, INT8, TEXT, TEXT) =
        "insert into leasehold.audit (lock, token, by, reason) values ($1, $2, $3, $4)";

    /// How many advisory locks a backend has in this database.
    COUNT(INT4) =
        "select count(*) from pg_locks where locktype = 'advisory' and granted and pid = $1";
    TERMINATE(INT4) = "select pg_terminate_backend($1)";
    SWEEP() = "select leasehold.sweep(interval '1 hour', interval '1 minute')";
}
