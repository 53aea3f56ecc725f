//! What ZooKeeper's errors mean for a lock.

use std::error::Error as _;

use zookeeper_client::Error as Zk;

use super::layout::Layout;
use crate::error::{Error, ErrorKind};

/// An error of a request that was sent: whether it was applied is known only where the
/// server itself refused it.
pub(super) fn of_request(error: Zk) -> Error {
    let refused = |kind, message: &str| Error::new(kind, message).not_applied();
    let known = match &error {
        Zk::NoAuth => refused(
            ErrorKind::Unusable,
            "ZooKeeper does not allow it to these credentials: check the user and the password in \
             the URL, and the ACL of the lock's nodes",
        ),
        Zk::AuthFailed => refused(
            ErrorKind::Unusable,
            "ZooKeeper does not accept these credentials: check the user and the password in the URL",
        ),
        Zk::InvalidAcl => refused(
            ErrorKind::Refused,
            "ZooKeeper refuses the ACL: acl=creator needs a user in the URL",
        ),
        Zk::Unimplemented => {
            refused(ErrorKind::Refused, "this ZooKeeper is too old: version 3.6 or later is needed")
        }
        Zk::QuotaExceeded => refused(
            ErrorKind::Unavailable,
            "a ZooKeeper quota on this path is used up: raise it, or use another root",
        ),
        Zk::Throttled | Zk::NotReadOnly => refused(
            ErrorKind::Unavailable,
            &format!("ZooKeeper does not take writes just now: {error}"),
        ),
        Zk::NoNode
        | Zk::NodeExists
        | Zk::NotEmpty
        | Zk::BadVersion
        | Zk::NoChildrenForEphemerals => {
            let message = format!("somebody else changes the lock's nodes: {error}");
            refused(ErrorKind::Unavailable, &message)
        }
        Zk::BadArguments(_) | Zk::MarshallingError => {
            Error::invalid(format!("ZooKeeper cannot do it: {error}"))
        }
        _ => {
            let message = format!("no answer from ZooKeeper: {error}");
            Error::new(ErrorKind::Unreachable, message)
        }
    };
    known.caused_by(error)
}

/// The answer of a request, or `None` if there is no such node.
pub(super) fn found<T>(answer: Result<T, Zk>) -> Result<Option<T>, Error> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(Zk::NoNode) => Ok(None),
        Err(error) => Err(of_request(error)),
    }
}

/// The same error where the URL has no user: then that is what is missing.
pub(super) fn without_user(error: Error) -> Error {
    let denied = error.source().and_then(|source| source.downcast_ref::<Zk>());
    if !matches!(denied, Some(Zk::NoAuth)) {
        return error;
    }
    let message = "ZooKeeper does not allow it to everybody, and the URL has no user: write \
                   zk://user:password@host, or check the ACL of the lock's nodes";
    Error::new(error.kind().clone(), message).with_outcome_of(&error).caused_by(error)
}

/// An error while a session was to be opened: no lock was touched.
pub(super) fn of_connecting(error: Zk) -> Error {
    let error = of_request(error);
    let message = format!("no session could be opened: {error}");
    Error::new(error.kind().clone(), message).not_applied().caused_by(error)
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
