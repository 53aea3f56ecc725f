//! What the server is asked in lease mode. The functions are in `../schema/`.

use tokio_postgres::types::Type;

use super::super::wire::Verb;

const NAMES: Type = Type::TEXT_ARRAY;
const OWNERS: Type = Type::BYTEA_ARRAY;
const NUMBERS: Type = Type::INT8_ARRAY;

/// The common case of the following.
pub(super) const TAKE: Verb = Verb {
    sql: "select * from leasehold.take($1, $2, $3, $4, $5, $6, $7, $8)",
    types: &[NAMES, OWNERS, NUMBERS, Type::INT8, Type::INT8, Type::TEXT, Type::INT4, Type::TEXT],
    number: 11,
};

pub(super) const ACQUIRE: Verb = Verb {
    sql: "select * from leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)",
    types: &[
        NAMES,
        OWNERS,
        NUMBERS,
        Type::BOOL_ARRAY,
        Type::INT8,
        Type::INT8,
        Type::TEXT,
        Type::INT4,
        Type::TEXT,
    ],
    number: 0,
};

pub(super) const BEAT: Verb = Verb {
    sql: "select * from leasehold.beat($1, $2, $3)",
    types: &[NAMES, OWNERS, Type::INT8],
    number: 1,
};

pub(super) const SERVE: Verb =
    Verb { sql: "select leasehold.serve_all($1)", types: &[NAMES], number: 2 };

pub(super) const RENEW: Verb = Verb {
    sql: "select * from leasehold.renew($1, $2, $3, $4, $5)",
    types: &[NAMES, OWNERS, NUMBERS, NUMBERS, Type::INT8],
    number: 3,
};

pub(super) const RELEASE: Verb = Verb {
    sql: "select leasehold.release($1, $2, $3)",
    types: &[NAMES, OWNERS, NUMBERS],
    number: 4,
};

pub(super) const LEAVE: Verb =
    Verb { sql: "select leasehold.leave($1, $2)", types: &[Type::TEXT, Type::BYTEA], number: 5 };

pub(super) const SETTLE: Verb = Verb {
    sql: "select * from leasehold.settle($1, $2, $3)",
    types: &[NAMES, OWNERS, NUMBERS],
    number: 6,
};

pub(super) const FORCE: Verb = Verb {
    sql: "select leasehold.force($1, $2, $3)",
    types: &[Type::TEXT, Type::TEXT, Type::TEXT],
    number: 7,
};

/// What else is over.
pub(super) const SWEEP: Verb = Verb {
    sql: "select leasehold.sweep(interval '1 hour', interval '1 minute')",
    types: &[],
    number: 8,
};

/// A page of the locks that are over.
pub(super) const SWEEP_PAGE: Verb = Verb {
    sql: "select last, highest \
          from leasehold.sweep_page($1, $2, interval '1 hour', interval '1 minute')",
    types: &[Type::TEXT, Type::INT8],
    number: 12,
};

pub(super) const INSPECT: Verb =
    Verb { sql: include_str!("inspect.sql"), types: &[Type::TEXT], number: 9 };

pub(super) const LIST: Verb =
    Verb { sql: include_str!("list.sql"), types: &[Type::TEXT], number: 10 };
