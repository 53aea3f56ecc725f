//! The driver's errors, and what they mean to a user.

use tokio_postgres::error::{DbError, Severity, SqlState};

use crate::error::{Error, ErrorKind};

/// What a request that was sent ended with.
pub(super) fn explain(error: tokio_postgres::Error, place: &str) -> Error {
    match error.as_db_error() {
        Some(said) => {
            let told = answered(said, place);
            // An error of the statement rolled it back. One that ends the session may
            // have come in the middle of the commit.
            let rolled_back = said.parsed_severity() == Some(Severity::Error);
            let told = if rolled_back { told } else { told.outcome_unknown() };
            told.caused_by(error)
        }
        None => {
            let message = format!("the connection to {place} broke: {error}");
            Error::new(ErrorKind::Unreachable, message).caused_by(error).outcome_unknown()
        }
    }
}

/// What an attempt to connect ended with: nothing was asked yet.
pub(super) fn not_connected(error: tokio_postgres::Error, place: &str) -> Error {
    match error.as_db_error() {
        Some(said) => answered(said, place).caused_by(error),
        None => {
            let reason = source(&error);
            let (kind, message) = if reason.contains("password missing") {
                let message = format!(
                    "{place} wants a password, and there is none: put it into the URL or PGPASSWORD"
                );
                (ErrorKind::Unusable, message)
            } else if reason.starts_with("authentication error") {
                (ErrorKind::Unusable, not_let_in(&reason, place))
            } else {
                let message = format!(
                    "cannot connect to {place}: {reason}; is PostgreSQL there, and does sslmode \
                     suit it?"
                );
                (ErrorKind::Unreachable, message)
            };
            Error::new(kind, message).caused_by(error)
        }
    }
}

fn not_let_in(reason: &str, place: &str) -> String {
    format!(
        "{place} does not let this user in: {reason}; check user and password (the URL's, or \
         PGPASSWORD), and the server's pg_hba.conf"
    )
}

fn source(error: &tokio_postgres::Error) -> String {
    match std::error::Error::source(error) {
        Some(source) => format!("{error}: {source}"),
        None => error.to_string(),
    }
}

fn answered(said: &DbError, place: &str) -> Error {
    let text = said.message();
    let code = said.code();
    let (kind, message) = if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        (
            ErrorKind::Refused,
            format!(
                "{place} does not allow this role what it needs: {text}; as an owner, run what \
                 `leasehold schema` prints, with its grants"
            ),
        )
    } else if matches!(code.code(), "28000" | "28P01") {
        (ErrorKind::Unusable, not_let_in(text, place))
    } else if *code == SqlState::UNDEFINED_DATABASE {
        (ErrorKind::Unusable, format!("{place}: {text}; check the database in the URL"))
    } else if *code == SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED {
        (ErrorKind::Refused, used_up(place))
    } else if *code == SqlState::READ_ONLY_SQL_TRANSACTION {
        (ErrorKind::Refused, standby(place))
    } else if *code == SqlState::LOCK_NOT_AVAILABLE {
        (
            ErrorKind::Unavailable,
            format!(
                "another transaction at {place} keeps a row of ours locked: {text}; look into \
                 pg_stat_activity for one that is idle in transaction"
            ),
        )
    } else if ends_session(code) || code.code().starts_with("08") {
        (ErrorKind::Unreachable, format!("{place} ended the session: {text}"))
    } else if matches!(&code.code()[..2], "40" | "53" | "55" | "58") || code.code() == "57014" {
        (ErrorKind::Unavailable, format!("{place} cannot do it now: {text}"))
    } else {
        (ErrorKind::Internal, format!("{place}: {text} ({})", code.code()))
    };
    Error::new(kind, message)
}

/// The server shuts down, starts up, or an administrator ended it.
fn ends_session(code: &SqlState) -> bool {
    matches!(code.code(), "57P01" | "57P02" | "57P03" | "57P05")
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
