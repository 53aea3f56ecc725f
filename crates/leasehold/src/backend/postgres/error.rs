//! The driver's errors, and what they mean to a user.

use tokio_postgres::error::{DbError, Severity};

use crate::error::{Error, ErrorKind};

/// What a request that was sent ended with.
pub(super) fn explain(error: tokio_postgres::Error, place: &str) -> Error {
    match error.as_db_error() {
        Some(answer) => {
            let explained = answered(answer, place);
            // An error of the statement rolled it back. One that ends the session may
            // have come in the middle of the commit.
            let rolled_back = answer.parsed_severity() == Some(Severity::Error);
            let explained =
                if rolled_back { explained.not_applied() } else { explained.outcome_unknown() };
            explained.caused_by(error)
        }
        None => {
            let message = format!("the connection to {place} broke: {error}");
            Error::new(ErrorKind::Unreachable, message).caused_by(error)
        }
    }
}

/// What an attempt to connect ended with: nothing was asked yet.
pub(super) fn not_connected(error: tokio_postgres::Error, place: &str) -> Error {
    if let Some(answer) = error.as_db_error() {
        return answered(answer, place).not_applied().caused_by(error);
    }
    let source = std::error::Error::source(&error);
    let reason = source.map_or_else(|| error.to_string(), |source| format!("{error}: {source}"));
    let (kind, message) = if reason.contains("password missing") {
        let message = format!(
            "{place} wants a password, and there is none: put it into the URL or PGPASSWORD"
        );
        (ErrorKind::Unusable, message)
    } else if reason.starts_with("authentication error") {
        (ErrorKind::Unusable, not_let_in(&reason, place))
    } else {
        let message = format!(
            "cannot connect to {place}: {reason}; is PostgreSQL there, and does sslmode suit it?"
        );
        (ErrorKind::Unreachable, message)
    };
    Error::new(kind, message).not_applied().caused_by(error)
}

fn not_let_in(reason: &str, place: &str) -> String {
    format!(
        "{place} does not let this user in: {reason}; check user and password (the URL's, or \
         PGPASSWORD), and the server's pg_hba.conf"
    )
}

/// The server's own error, by its [code](https://www.postgresql.org/docs/current/errcodes-appendix.html).
fn answered(answer: &DbError, place: &str) -> Error {
    let (text, code) = (answer.message(), answer.code().code());
    let (kind, message) = match (code, code.get(..2).unwrap_or_default()) {
        // insufficient_privilege
        ("42501", _) => (
            ErrorKind::Refused,
            format!(
                "{place} does not allow this role what it needs: {text}; as an owner, run what \
                 `leasehold schema` prints, with its grants"
            ),
        ),
        // invalid_authorization_specification, invalid_password
        ("28000" | "28P01", _) => (ErrorKind::Unusable, not_let_in(text, place)),
        // undefined_database
        ("3D000", _) => {
            (ErrorKind::Unusable, format!("{place}: {text}; check the database in the URL"))
        }
        // sequence_generator_limit_exceeded
        ("2200H", _) => (ErrorKind::Refused, used_up(place)),
        // read_only_sql_transaction
        ("25006", _) => (ErrorKind::Refused, standby(place)),
        // lock_not_available
        ("55P03", _) => (
            ErrorKind::Unavailable,
            format!(
                "another transaction at {place} keeps a row of ours locked: {text}; look into \
                 pg_stat_activity for one that is idle in transaction"
            ),
        ),
        // The server shuts down, starts up, or an administrator ended it.
        ("57P01" | "57P02" | "57P03" | "57P05", _) | (_, "08") => {
            (ErrorKind::Unreachable, format!("{place} ended the session: {text}"))
        }
        // query_canceled, and classes of what may succeed later
        ("57014", _) | (_, "40" | "53" | "55" | "58") => {
            (ErrorKind::Unavailable, format!("{place} cannot do it now: {text}"))
        }
        _ => (ErrorKind::Internal, format!("{place}: {text} ({code})")),
    };
    Error::new(kind, message)
}

/// The clock gets there in the year 2255: somebody has set the sequence by hand.
fn used_up(place: &str) -> String {
    format!(
        "the tokens of session mode at {place} are used up: the sequence leasehold.tokens is at \
         2^53 - 1. Once no resource remembers a token of it, set it back to the clock: select \
         setval('leasehold.tokens', (date_part('epoch', clock_timestamp()) * 1000000)::bigint)"
    )
}

pub(super) fn standby(place: &str) -> String {
    format!(
        "{place} is a standby or read-only, where no lock can be taken; connect to the primary, or \
         look at default_transaction_read_only of this role and database"
    )
}
