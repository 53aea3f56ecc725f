//! What Redis says, in the words of this library: above all, whether it did it anyway.

use redis::{ErrorKind as Cause, RedisError};

use crate::error::{Error, ErrorKind};

/// Why a request has no answer.
#[derive(Debug, Clone)]
pub(super) enum Failure {
    /// It was never sent.
    NotSent(Error),
    /// The server refused it.
    Refused(RedisError),
    /// The connection ended, or nobody answered in time.
    Unanswered(Error),
}

impl Failure {
    pub(super) fn of(error: RedisError) -> Self {
        match error.kind() {
            Cause::Server(_) | Cause::Extension => Self::Refused(error),
            _ => {
                let message = "the connection to the server ended before it answered";
                let error = Error::new(ErrorKind::Unreachable, message).caused_by(error);
                Self::Unanswered(error.outcome_unknown())
            }
        }
    }

    pub(super) fn silent() -> Self {
        let message = "the server did not answer in time";
        Self::Unanswered(Error::new(ErrorKind::Unreachable, message).outcome_unknown())
    }

    /// What the server refused it for, in one word.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Self::Refused(error) => error.code(),
            Self::NotSent(_) | Self::Unanswered(_) => None,
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::NotSent(error) | Failure::Unanswered(error) => error,
            Failure::Refused(error) => refused(error),
        }
    }
}

/// A refusal by the server. All of the first kind come before a script's first write.
fn refused(error: RedisError) -> Error {
    let (kind, advice) = match error.code().unwrap_or_default() {
        "READONLY" => (
            ErrorKind::Unavailable,
            "this server is a replica (a fail-over?): connect to the master, or through Sentinel",
        ),
        "LOADING" => (ErrorKind::Unavailable, "the server is loading its data; try again later"),
        "BUSY" => (ErrorKind::Unavailable, "another script keeps the server busy"),
        "TRYAGAIN" | "MOVED" | "ASK" => {
            (ErrorKind::Unavailable, "the lock's slot is just moving to another node; try again")
        }
        "CLUSTERDOWN" | "MASTERDOWN" => {
            (ErrorKind::Unavailable, "no master is there for this lock; wait for a fail-over")
        }
        "NOREPLICAS" => (
            ErrorKind::Unavailable,
            "the server has too few replicas to accept writes (min-replicas-to-write)",
        ),
        "MISCONF" => (
            ErrorKind::Unavailable,
            "the server cannot write its data to disk and stopped accepting writes; see its log",
        ),
        "OOM" => (ErrorKind::Unavailable, "the server's memory is full; raise maxmemory"),
        "NOAUTH" | "WRONGPASS" => {
            (ErrorKind::Unusable, "the server wants another user or password than the URL has")
        }
        "CROSSSLOT" => {
            (ErrorKind::Unusable, "this is a cluster: write redis+cluster:// in place of redis://")
        }
        "NOPERM" => {
            let message = "the user in the URL may not do this: it needs EVALSHA, SCRIPT LOAD, \
                           PUBLISH, SUBSCRIBE, the lock keys, {*}leasehold:* and the channels \
                           leasehold:* and {*}leasehold:*";
            let error = Error::new(ErrorKind::Unusable, message).caused_by(error);
            return error.outcome_unknown();
        }
        _ => {
            let message = format!("the server refused it: {error}");
            return Error::new(ErrorKind::Unusable, message).outcome_unknown();
        }
    };
    Error::new(kind, advice).caused_by(error)
}

/// Why there is no connection: nothing was sent.
pub(super) fn not_connected(address: &str, error: RedisError) -> Error {
    let kind = match error.kind() {
        _ if matches!(error.code(), Some("NOAUTH" | "WRONGPASS" | "NOPERM")) => ErrorKind::Unusable,
        Cause::AuthenticationFailed | Cause::InvalidClientConfig => ErrorKind::Unusable,
        Cause::RESP3NotSupported => {
            let message =
                format!("{address} is older than Redis 6.0.6, which is the least that works");
            return Error::new(ErrorKind::Unusable, message).caused_by(error);
        }
        _ => ErrorKind::Unreachable,
    };
    Error::new(kind, format!("cannot connect to {address}")).caused_by(error)
}

/// An answer that no script of ours gives.
pub(super) fn unexpected() -> Error {
    let message = "the server answered something that no script of ours answers; please report it";
    Error::new(ErrorKind::Internal, message).outcome_unknown()
}
