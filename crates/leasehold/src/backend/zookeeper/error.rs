//! What ZooKeeper's errors mean for a lock.

use std::error::Error as _;

use zookeeper_client::Error as Zk;

use super::layout::Layout;
use crate::error::{Error, ErrorKind, Outcome};

/// An error of a request that was sent: whether it was applied is known only where the
/// server itself refused it.
pub(super) fn of_request(error: Zk) -> Error {
    let (kind, message) = match &error {
        Zk::NoAuth => (
            ErrorKind::Unusable,
            "ZooKeeper does not allow it to these credentials: check the user and the password in \
             the URL, and the ACL of the lock's nodes"
                .to_owned(),
        ),
        Zk::AuthFailed => (
            ErrorKind::Unusable,
            "ZooKeeper does not accept these credentials: check the user and the password in the URL"
                .to_owned(),
        ),
        Zk::InvalidAcl => (
            ErrorKind::Refused,
            "ZooKeeper refuses the ACL: acl=creator needs a user in the URL".to_owned(),
        ),
        Zk::Unimplemented => (
            ErrorKind::Refused,
            "this ZooKeeper is too old: version 3.6 or later is needed".to_owned(),
        ),
        Zk::QuotaExceeded => (
            ErrorKind::Unavailable,
            "a ZooKeeper quota on this path is used up: raise it, or use another root".to_owned(),
        ),
        Zk::Throttled | Zk::NotReadOnly => {
            (ErrorKind::Unavailable, format!("ZooKeeper does not take writes just now: {error}"))
        }
        Zk::NoNode | Zk::NodeExists | Zk::NotEmpty | Zk::BadVersion | Zk::NoChildrenForEphemerals => {
            (ErrorKind::Unavailable, format!("somebody else changes the lock's nodes: {error}"))
        }
        Zk::BadArguments(_) | Zk::MarshallingError => {
            (ErrorKind::Invalid, format!("ZooKeeper cannot do it: {error}"))
        }
        _ => {
            let message = format!("no answer from ZooKeeper: {error}");
            let unknown = Error::new(ErrorKind::Unreachable, message);
            return unknown.outcome_unknown().caused_by(error);
        }
    };
    Error::new(kind, message).caused_by(error)
}

/// The same where the URL has no user: then that is what is missing.
pub(super) fn without_user(error: Error) -> Error {
    let denied = error.source().and_then(|source| source.downcast_ref::<Zk>());
    if !matches!(denied, Some(Zk::NoAuth)) {
        return error;
    }
    let message = "ZooKeeper does not allow it to everybody, and the URL has no user: write \
                   zk://user:password@host, or check the ACL of the lock's nodes";
    let told = Error::new(error.kind().clone(), message);
    let told = match error.outcome() {
        Outcome::Unknown => told.outcome_unknown(),
        _ => told,
    };
    told.caused_by(error)
}

/// An error while a session was to be opened: no lock was touched.
pub(super) fn of_connecting(error: Zk) -> Error {
    let error = of_request(error);
    let kind = error.kind().clone();
    Error::new(kind, format!("no session could be opened: {error}")).caused_by(error)
}

/// What looks like a lock node of the other layout is on a lock's path.
pub(super) fn mixed(lock: &str, foreign: &str, layout: Layout) -> Error {
    let (ours, theirs) = (layout.as_str(), layout.other().as_str());
    let message = format!(
        "{lock}/{foreign} looks like a lock node of layout={theirs}; clients of that layout and \
         those of layout={ours} do not exclude each other, so both would have the lock. Use \
         layout={theirs} if all clients of this path do, or else another path"
    );
    Error::new(ErrorKind::Refused, message)
}

/// There is no connection just now: nothing was sent.
pub(super) fn disconnected() -> Error {
    Error::new(ErrorKind::Unreachable, "not connected to ZooKeeper just now")
}
