//! etcd's errors, and what they mean to a user: in one place, so that every operation
//! tells the same story.

use std::error::Error as StdError;
use std::sync::Arc;
use std::{fmt, io};

use etcd_client::Error as EtcdError;
use tonic::{Code, Status};

use crate::error::{Error, ErrorKind};

const OLD_TOKEN: &str = "revision of auth store is old";

/// The driver's error below ours. Its own text shows the insides of the driver, so it says
/// what ours says: nothing more.
#[derive(Debug)]
struct Cause {
    error: EtcdError,
    said: String,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.said)
    }
}

impl StdError for Cause {}

/// There was no connection: the request was never sent.
#[derive(Debug, Clone)]
pub(super) struct NotConnected(pub(super) Arc<io::Error>);

impl NotConnected {
    /// As the driver understands it.
    pub(super) fn told(self) -> Status {
        let mut status = Status::unavailable("no connection");
        status.set_source(Arc::new(self));
        status
    }
}

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not connected")
    }
}

impl StdError for NotConnected {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(&*self.0)
    }
}

/// The driver's error as the user sees it.
pub(super) fn explain(error: EtcdError) -> Error {
    let explained = match &error {
        EtcdError::GRpcStatus(status) => of_status(status),
        EtcdError::InvalidArgs(_)
        | EtcdError::InvalidUri(_)
        | EtcdError::InvalidMetadataValue(_) => Error::new(ErrorKind::Invalid, error.to_string()),
        EtcdError::TransportError(cause) if never_sent(cause) => no_connection(cause),
        EtcdError::TransportError(cause) => {
            let message = format!("the connection failed: {}", innermost(cause));
            Error::new(ErrorKind::Unreachable, message)
        }
        _ => Error::new(ErrorKind::Unreachable, error.to_string()),
    };
    let said = explained.to_string();
    explained.caused_by(Cause { error, said })
}

fn of_status(status: &Status) -> Error {
    use ErrorKind::{Invalid, Unavailable, Unreachable, Unusable};
    let said = status.message().trim_start_matches("etcdserver: ");
    let refused = |kind, message: &str| Error::new(kind, message).not_applied();
    let refuses_user =
        |advice: &str| refused(Unusable, &format!("etcd refuses this user ({said}); {advice}"));
    match status.code() {
        Code::Unavailable if never_sent(status) => no_connection(status),
        Code::Unimplemented => {
            let message = format!("what answers there does not speak as etcd does ({said})");
            refused(Unreachable, &message)
        }
        // Turned away before it was proposed.
        Code::Unavailable if said.contains("no leader") => {
            refused(Unreachable, "no leader: the member has lost the majority of its cluster")
        }
        Code::ResourceExhausted if said.contains("database space exceeded") => {
            let message = "etcd's quota is used up; compact and defragment it, then clear the \
                           alarm NOSPACE";
            // What crosses the quota while it is applied stays applied.
            Error::new(Unavailable, message)
        }
        Code::ResourceExhausted if said.contains("too many requests") => refused(Unavailable, said),
        // A connection that was ended for its many pings, with requests on it.
        Code::ResourceExhausted => Error::new(Unavailable, said),
        Code::PermissionDenied | Code::Unauthenticated => {
            refuses_user("check the user, its password and its role's keys")
        }
        Code::InvalidArgument if said.contains("authentication failed") => {
            refuses_user("check the user and the password in the URL")
        }
        Code::InvalidArgument if said.contains("user name is empty") => {
            let message = "etcd wants a user and a password, and the URL has none: write \
                           etcd://user:password@host";
            refused(Unusable, message)
        }
        Code::FailedPrecondition if said.contains("authentication is not enabled") => {
            let message = "this etcd has no users (authentication is not enabled): leave the user \
                           out of the URL, or enable it";
            refused(Unusable, message)
        }
        Code::InvalidArgument if said.contains(OLD_TOKEN) => {
            let message = "etcd's users and roles change again and again; try again later";
            refused(Unavailable, message)
        }
        Code::InvalidArgument | Code::NotFound | Code::FailedPrecondition | Code::OutOfRange => {
            Error::new(Invalid, said)
        }
        _ => Error::new(Unreachable, said),
    }
}

fn no_connection(cause: &dyn StdError) -> Error {
    let cause = innermost(cause);
    let advice = "check the address, and that etcd runs there";
    let message = format!("no connection: {cause}; {advice}");
    Error::new(ErrorKind::Unreachable, message).not_applied()
}

pub(super) fn broken_reply() -> Error {
    let message = "etcd's answer does not fit the request; please report this";
    Error::new(ErrorKind::Internal, message)
}

/// Whether the lease of a request is not there (any more). Nothing was applied then.
pub(super) fn is_lease_gone(error: &Error) -> bool {
    status_says(error, "requested lease not found")
}

/// Whether a revision that was asked for has been compacted away.
pub(super) fn is_compacted(error: &Error) -> bool {
    status_says(error, "required revision has been compacted")
}

/// Whether a request was refused because its token is from before a change of users or roles.
/// Nothing was applied then.
pub(super) fn has_old_token(error: &EtcdError) -> bool {
    matches!(error, EtcdError::GRpcStatus(status) if status.message().contains(OLD_TOKEN))
}

/// Whether a stream ended because of the token that it was opened with.
pub(super) fn is_about_token(error: &Error) -> bool {
    status_says(error, OLD_TOKEN) || status_says(error, "invalid auth token")
}

fn status_says(error: &Error, text: &str) -> bool {
    let cause = error.source().and_then(|source| source.downcast_ref::<Cause>());
    matches!(cause, Some(Cause { error: EtcdError::GRpcStatus(status), .. })
        if status.message().contains(text))
}

/// Whether the fault is the way to the member, or the member: then another one may do better.
pub(super) fn is_members(error: &EtcdError) -> bool {
    match error {
        EtcdError::GRpcStatus(status) => !matches!(
            status.code(),
            Code::InvalidArgument
                | Code::NotFound
                | Code::PermissionDenied
                | Code::ResourceExhausted
                | Code::FailedPrecondition
                | Code::OutOfRange
                | Code::Unauthenticated
        ),
        EtcdError::InvalidArgs(_) | EtcdError::InvalidUri(_) => false,
        _ => true,
    }
}

/// Whether no connection was there to send it on.
fn never_sent(status: &dyn StdError) -> bool {
    causes(status).any(|cause| {
        let io = cause.downcast_ref::<io::Error>().map(io::Error::kind);
        io == Some(io::ErrorKind::ConnectionRefused)
            || cause.is::<NotConnected>()
            || matches!(cause.to_string().as_str(), "tcp connect error" | "dns error")
    })
}

fn innermost(error: &dyn StdError) -> String {
    causes(error).last().map_or_else(|| error.to_string(), ToString::to_string)
}

fn causes(error: &dyn StdError) -> impl Iterator<Item = &(dyn StdError + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}
