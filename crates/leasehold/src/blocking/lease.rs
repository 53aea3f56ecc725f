//! The guard, for a thread.

use std::sync::Arc;
use std::time::Duration;

use super::engine::Engine;
use crate::clock::Moment;
use crate::error::Result;
use crate::lease::LeaseState;
use crate::loss::Loss;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// One acquisition of a lock: as [`leasehold::Lease`](crate::Lease), for threads.
///
/// # Dropping
///
/// Dropping it releases the lock and waits for the store's answer, or until it is clear
/// that none comes. Inside an async runtime, or when a thread's own variables are dropped
/// at its end, it does not wait: the release then goes on in the background, for as long as another part of its client lives.
#[derive(Debug)]
#[must_use = "a lease that is dropped at once is released at once"]
pub struct Lease {
    engine: Arc<Engine>,
    lease: crate::Lease,
}

impl Lease {
    pub(super) fn new(engine: Arc<Engine>, lease: crate::Lease) -> Self {
        Self { engine, lease }
    }

    /// The lock.
    pub fn name(&self) -> &Name {
        self.lease.name()
    }

    /// The fencing token: what the resource compares.
    pub fn token(&self) -> Token {
        self.lease.token()
    }

    /// The unique id of this acquisition.
    pub fn owner(&self) -> Owner {
        self.lease.owner()
    }

    /// The time to live that each renewal restores.
    pub fn ttl(&self) -> Duration {
        self.lease.ttl()
    }

    /// Where it stands, by this process's own clock and what the store last said.
    pub fn state(&self) -> LeaseState {
        self.lease.state()
    }

    /// The last moment the holder may act, as far as it is proved.
    pub fn deadline(&self) -> Moment {
        self.lease.deadline()
    }

    /// How long the holder may still act, as far as it is proved; zero once it is over.
    pub fn remaining(&self) -> Duration {
        self.lease.remaining()
    }

    /// Waits until the lease is lost, but at most for `patience`; `None` if it is not.
    ///
    /// # Errors
    ///
    /// Inside an async runtime.
    pub fn lost_within(&self, patience: Duration) -> Result<Option<Loss>> {
        let waiting = async { tokio::time::timeout(patience, self.lease.lost()).await.ok() };
        self.engine.wait_for(waiting)
    }

    /// The token, if the lease may be acted on now: waits while it is in doubt.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Lost`](crate::ErrorKind::Lost) with the reason, once it is lost; and
    /// inside an async runtime.
    pub fn checkpoint(&self) -> Result<Token> {
        self.engine.wait_for(self.lease.checkpoint())?
    }

    /// Asks the store whether the lease still covers the lock; see
    /// [`Lease::verify`](crate::Lease::verify).
    ///
    /// # Errors
    ///
    /// As there; and inside an async runtime.
    pub fn verify(&self) -> Result<Token> {
        self.engine.wait_for(self.lease.verify())?
    }

    /// Proves the lease now and extends it to its whole TTL; see
    /// [`Lease::renew`](crate::Lease::renew).
    ///
    /// # Errors
    ///
    /// As there; and inside an async runtime.
    pub fn renew(&self) -> Result<()> {
        self.engine.wait_for(self.lease.renew())?
    }

    /// Gives the lock back, and tells the truth about it; see
    /// [`Lease::release`](crate::Lease::release).
    ///
    /// # Errors
    ///
    /// As there; and inside an async runtime, where it is released in the background.
    pub fn release(self) -> Result<()> {
        self.engine.wait_for(self.lease.release_shared())?
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // An error means that it had been released or lost, or that the store does not
        // answer; what can still be done, the lease inside does when it is dropped.
        let _ = self.engine.wait_for(self.lease.release_shared());
    }
}
