//! What makes your own `multi` fail once the lease is lost.

use zookeeper_client::MultiWriter;

use super::ZookeeperStore;
use super::ledger::Stage;
use crate::backend::Hold;
use crate::error::{Error, Result};

/// A check for your own transactions: it holds as long as the lease's node exists.
///
/// The node's name is this acquisition's alone and it is never created again, so that it
/// exists says it all. Its version says nothing: renewals change it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeaseCheck {
    path: String,
}

impl LeaseCheck {
    /// The path of the lease's node, for clients of another kind: check it with version −1.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Adds the check to a `multi`, which then fails as a whole if the lease is lost.
    ///
    /// # Errors
    ///
    /// If the path cannot be seen below the writer's root.
    pub fn add_to(&self, writer: &mut MultiWriter<'_>) -> Result<(), zookeeper_client::Error> {
        writer.add_check_version(&self.path, -1)
    }
}

impl ZookeeperStore {
    /// The check for a [lease](crate::Lease::hold) that a client of this store holds.
    ///
    /// # Errors
    ///
    /// [`NotHeld`](crate::ErrorKind::NotHeld) if it does not hold it (any more).
    pub fn check(&self, hold: &Hold) -> Result<LeaseCheck> {
        let entry = self.shared.entry(hold.owner).filter(
            |entry| matches!(&entry.stage, Stage::Held { node, .. } if node.token == hold.token),
        );
        let path = entry.and_then(|entry| entry.path()).ok_or_else(Error::not_held)?;
        Ok(LeaseCheck { path })
    }
}
