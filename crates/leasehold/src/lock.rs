//! A lock to be taken: its name and the terms. It does no I/O.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Unavailable;
use crate::client::Client;
use crate::error::{Error, Operation, Result};
use crate::lease::Lease;
use crate::name::{InvalidName, Name};
use crate::terms::{OnDoubt, Patience, Terms};

mod run;

/// A lock to be taken, and the terms on which. Made by [`Locks::lock`](crate::Locks::lock).
///
/// Setting terms cannot fail; what cannot work is refused when the lock is taken.
#[derive(Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    client: Arc<Client>,
    name: Result<Name, InvalidName>,
    terms: Terms,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, name: Result<Name, InvalidName>) -> Self {
        Self { client, name, terms: Terms::default() }
    }

    /// How long the lease lasts without renewal. Default: 30 s.
    ///
    /// Shorter means that others take over sooner after a crash; longer means that a
    /// longer pause or outage is survived.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.terms.ttl = ttl;
        self
    }

    /// How long [`acquire`](Lock::acquire) and [`run`](Lock::run) wait for a lock that
    /// another holds. Default: for ever. Zero does not wait.
    ///
    /// It may be shorter than a round trip: the answer to a request that is under way when
    /// patience ends is awaited for up to a second more, and a lock that is free is taken.
    pub fn wait(mut self, patience: Duration) -> Self {
        self.terms.patience = match patience.is_zero() {
            true => Patience::None,
            false => Patience::For(patience),
        };
        self
    }

    /// Waits for ever: the default.
    pub fn wait_forever(mut self) -> Self {
        self.terms.patience = Patience::Forever;
        self
    }

    /// No renewal: the TTL is the whole term, and the lease is lost at its end.
    pub fn no_renewal(mut self) -> Self {
        self.terms.renewed = false;
        self
    }

    /// The longest the lease is held, renewals included; then it is lost with
    /// [`LossReason::MaxHold`](crate::LossReason::MaxHold). Default: no cap.
    pub fn max_hold(mut self, cap: Duration) -> Self {
        self.terms.max_hold = Some(cap);
        self
    }

    /// What to do when a renewal gets no answer. Default: prove it again, 8 times.
    pub fn on_doubt(mut self, on_doubt: OnDoubt) -> Self {
        self.terms.on_doubt = on_doubt;
        self
    }

    /// Takes the lock if it is free (and nobody waits for it); `None` if it is not.
    ///
    /// # Errors
    ///
    /// When the name or the terms cannot work, or the store does not answer. After an
    /// unanswered request the store was asked whether it had succeeded; if it cannot
    /// be asked either, what the request may have done is undone in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaks nothing: if the lock was or will be granted, it is
    /// given back in the background.
    pub async fn try_acquire(&self) -> Result<Option<Lease>> {
        let terms = Terms { patience: Patience::None, ..self.terms.clone() };
        Ok(self.client.acquire(self.checked()?, &terms).await?.ok())
    }

    /// Takes the lock, waiting for it as long as [`wait`](Lock::wait) says (by default
    /// for ever), first come, first served where the store can.
    ///
    /// Leases are not re-entrant: a task that waits for a lock it holds itself waits in vain.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Held`](crate::ErrorKind::Held) when patience ran out, with who
    /// holds it. If the store has stopped answering by then, the error says that, and since
    /// when: at most a second after the end of patience. Otherwise as for
    /// [`try_acquire`](Lock::try_acquire).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaks nothing: neither a lock nor a place in the queue.
    pub async fn acquire(&self) -> Result<Lease> {
        let name = self.checked()?;
        match self.client.acquire(name.clone(), &self.terms).await? {
            Ok(lease) => Ok(lease),
            Err(Unavailable { by, waited }) => {
                let error = Error::held(by, waited);
                let store = self.client.context.backend.guarantees().store;
                Err(error.on_store(store).during(Operation::Acquire, Some(&name)))
            }
        }
    }

    fn checked(&self) -> Result<Name> {
        let name = self.name.clone()?;
        self.terms.check()?;
        Ok(name)
    }
}

impl fmt::Debug for Lock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("terms", &self.terms)
            .finish_non_exhaustive()
    }
}
