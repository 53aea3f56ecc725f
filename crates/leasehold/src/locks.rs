//! A client: all locks of one store.

use std::fmt;
use std::sync::Arc;

use crate::backend::{Finding, Force, ForceRelease, LockInfo};
use crate::client::Client;
use crate::context::Subject;
use crate::error::{Error, Operation, Result};
use crate::event::{EventKind, Events};
use crate::guarantees::Guarantees;
use crate::lock::Lock;
use crate::loss::Forced;
use crate::name::Name;
use crate::observe::Stall;
use crate::token::Token;

/// The locks of one store, as one client. Cheap to clone; clones are one client.
///
/// A client keeps its leases by one task on the runtime it was connected on. On a runtime
/// of one thread, leases are therefore not renewed while that thread is busy or between
/// two calls of `block_on`. Tasks of one client that wait for the same lock queue among
/// themselves first.
#[derive(Clone)]
pub struct Locks {
    client: Arc<Client>,
}

impl Locks {
    pub(crate) fn new(client: Client) -> Self {
        Self { client: Arc::new(client) }
    }

    /// Whether none of its requests is under way or collected.
    #[cfg(all(test, shuttle))]
    pub(crate) fn is_idle(&self) -> bool {
        self.client.is_idle()
    }

    /// A lock by its name, to be taken. Does nothing yet, and fails only when it is.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.client.clone(), Name::new(name))
    }

    /// What the store promises.
    pub fn guarantees(&self) -> &Guarantees {
        self.client.context.backend.guarantees()
    }

    /// Everything that happens to this client's leases from now on.
    pub fn events(&self) -> Events {
        self.client.context.announcer.subscribe()
    }

    /// The longest this process was seen to stand still while this client held leases.
    ///
    /// A stall of a third of a TTL costs a renewal, one of a whole TTL costs the lease;
    /// it is also logged, and a metric.
    pub fn longest_stall(&self) -> Stall {
        self.client.context.stalls.seen()
    }

    /// Looks at one lock: who holds it, since when, who waits.
    ///
    /// # Errors
    ///
    /// When the name cannot be a lock's, or the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        let name = Name::new(name)?;
        let asking = self.client.context.backend.clone().inspect(name.clone().into());
        let info = self.client.ask(asking).await;
        let info = info.map_err(|error| error.during(Operation::Inspect, Some(&name)))?;
        Ok(info.unwrap_or_else(|| LockInfo::free(name)))
    }

    /// Looks at every lock that is held or waited for and whose name starts with `prefix`.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let asking = self.client.context.backend.clone().list(prefix.to_owned());
        let list = self.client.ask(asking).await;
        list.map_err(|error| error.during(Operation::List, None))
    }

    /// Takes a lock away from its holder, recording who and why. The token of the lease
    /// that was ended, or `None` if nobody held the lock.
    ///
    /// The next grant's token is higher, so a fenced resource turns the old holder away;
    /// an unfenced one is *not* protected: the old holder learns of it only at its next
    /// contact with the store, or sooner where the store can tell it.
    ///
    /// # Errors
    ///
    /// When the reason is empty, the name cannot be a lock's, or the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the release may or may not happen.
    pub async fn force_release(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Option<Token>> {
        let name = Name::new(name)?;
        let forced = Forced::new(self.client.context.holder.to_string(), reason);
        if forced.reason.trim().is_empty() {
            return Err(Error::invalid("a force-release needs a reason: it is recorded"));
        }
        let (lock, force) = (name.clone().into(), Force::new(forced.clone()));
        let asking = self.client.context.backend.clone().force_release(lock, force);
        let ended = self.client.ask(asking).await;
        let ended = ended.map_err(|error| error.during(Operation::ForceRelease, Some(&name)))?;
        // An exclusive lock has one holder.
        let ended = match ended {
            ForceRelease::Ended(tokens) => tokens.first().copied(),
            ForceRelease::NobodyHeld | ForceRelease::Others(_) => None,
        };
        if ended.is_some() {
            let context = &self.client.context;
            let class = context.meter.class_of(&name);
            let subject = Subject { name: &name, owner: None, class };
            context.announce(subject, context.now(), EventKind::Forced(forced));
        }
        Ok(ended)
    }

    /// Examines the store's set-up: what about it is unsafe.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future changes nothing.
    pub async fn examine(&self) -> Result<Vec<Finding>> {
        let asking = self.client.context.backend.clone().examine();
        let findings = self.client.ask(asking).await;
        findings.map_err(|error| error.during(Operation::Examine, None))
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locks").field("guarantees", self.guarantees()).finish_non_exhaustive()
    }
}
