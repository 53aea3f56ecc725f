//! A lock to be taken by a thread.

use std::sync::Arc;
use std::time::Duration;

use super::Lease;
use super::engine::Engine;
use crate::error::{Error, ErrorKind, Result};
use crate::lease::LeaseState;
use crate::terms::OnDoubt;

/// A lock to be taken, and the terms on which: as [`leasehold::Lock`](crate::Lock).
#[derive(Debug, Clone)]
#[must_use = "a lock does nothing until it is acquired"]
pub struct Lock {
    engine: Arc<Engine>,
    lock: crate::Lock,
}

impl Lock {
    pub(super) fn new(engine: Arc<Engine>, lock: crate::Lock) -> Self {
        Self { engine, lock }
    }

    fn with(self, change: impl FnOnce(crate::Lock) -> crate::Lock) -> Self {
        Self { engine: self.engine, lock: change(self.lock) }
    }

    /// How long the lease lasts without renewal. Default: 30 s.
    pub fn ttl(self, ttl: Duration) -> Self {
        self.with(|lock| lock.ttl(ttl))
    }

    /// How long to wait for a lock that another holds. Default: for ever.
    pub fn wait(self, patience: Duration) -> Self {
        self.with(|lock| lock.wait(patience))
    }

    /// Waits for ever: the default.
    pub fn wait_forever(self) -> Self {
        self.with(crate::Lock::wait_forever)
    }

    /// No renewal: the TTL is the whole term.
    pub fn no_renewal(self) -> Self {
        self.with(crate::Lock::no_renewal)
    }

    /// The longest the lease is held, renewals included.
    pub fn max_hold(self, cap: Duration) -> Self {
        self.with(|lock| lock.max_hold(cap))
    }

    /// What to do when a renewal gets no answer.
    pub fn on_doubt(self, on_doubt: OnDoubt) -> Self {
        self.with(|lock| lock.on_doubt(on_doubt))
    }

    /// Takes the lock if it is free; `None` if it is not.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire); and inside an async runtime.
    pub fn try_acquire(&self) -> Result<Option<Lease>> {
        let taken = self.engine.wait_for(self.lock.try_acquire())??;
        Ok(taken.map(|lease| Lease::new(self.engine.clone(), lease)))
    }

    /// Takes the lock, waiting for it as long as [`wait`](Lock::wait) says.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire); and inside an async runtime.
    pub fn acquire(&self) -> Result<Lease> {
        let lease = self.engine.wait_for(self.lock.acquire())??;
        Ok(Lease::new(self.engine.clone(), lease))
    }

    /// Runs `work` under the lock, renews it meanwhile, and releases it however the work
    /// ends, a panic included.
    ///
    /// A thread cannot be stopped from outside: call [`Lease::checkpoint`] between steps
    /// with side effects, and give its token to the resource.
    ///
    /// # Errors
    ///
    /// The work's own error; or, even if the work itself succeeded, [`ErrorKind::Lost`]
    /// or [`ErrorKind::NotHeld`] when the lease was gone before it ended. Otherwise as
    /// for [`acquire`](Lock::acquire).
    pub fn run<T, E: From<Error>>(self, work: impl FnOnce(&Lease) -> Result<T, E>) -> Result<T, E> {
        let lease = self.acquire()?;
        let done = work(&lease)?;
        let state = lease.state();
        match (lease.release(), state) {
            (Err(error), LeaseState::Lost(loss)) if *error.kind() == ErrorKind::NotHeld => {
                Err(Error::lost(loss).into())
            }
            (Err(error), _) if *error.kind() == ErrorKind::NotHeld => Err(error.into()),
            _ => Ok(done),
        }
    }
}
