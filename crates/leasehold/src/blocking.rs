//! The same for threads: no `async` in sight.
//!
//! A facade over a runtime of its own, with one thread, so that leases are renewed
//! between calls. Inside an async runtime every call is an error instead of a panic:
//! use the async API there.
//!
//! ```
//! let locks = leasehold::blocking::connect("memory:")?;
//! let lease = locks.lock("inventory:item42").acquire()?;
//! println!("write with token {}", lease.token());
//! lease.release()?;
//!
//! let pages = locks.lock("nightly-report").run(|lease| {
//!     let mut written = 0;
//!     for _page in 0..3 {
//!         let _token = lease.checkpoint()?; // waits while in doubt, errs when lost
//!         written += 1;
//!     }
//!     Ok::<_, leasehold::Error>(written)
//! })?;
//! assert_eq!(pages, 3);
//! # Ok::<(), leasehold::Error>(())
//! ```

use std::sync::Arc;

use crate::backend::{Finding, LockInfo};
use crate::connect::Connect;
use crate::error::Result;
use crate::event::{self, Event};
use crate::guarantees::Guarantees;
use crate::observe::Stall;
use crate::token::Token;

use engine::Engine;
pub use lease::Lease;
pub use lock::Lock;

mod engine;
mod lease;
mod lock;

/// Connects to the store behind `url`, as [`leasehold::connect`](crate::connect()) does.
///
/// # Errors
///
/// As there; and inside an async runtime.
pub fn connect(url: impl Into<String>) -> Result<Locks> {
    Locks::open(crate::connect(url))
}

/// The locks of one store, for threads. Cheap to clone; clones are one client.
#[derive(Debug, Clone)]
pub struct Locks {
    engine: Arc<Engine>,
    locks: crate::Locks,
}

impl Locks {
    /// Connects with more than a URL:
    /// `Locks::open(leasehold::connect("sqlite:").label("billing"))`.
    ///
    /// # Errors
    ///
    /// When the store cannot be opened or is refused; and inside an async runtime.
    pub fn open(connect: Connect) -> Result<Self> {
        let engine = Arc::new(Engine::start()?);
        let locks = engine.wait_for(async { connect.await })??;
        Ok(Self { engine, locks })
    }

    /// A lock by its name, to be taken. Does nothing yet, and fails only when it is.
    pub fn lock(&self, name: impl AsRef<str>) -> Lock {
        Lock::new(self.engine.clone(), self.locks.lock(name))
    }

    /// What the store promises.
    pub fn guarantees(&self) -> &Guarantees {
        self.locks.guarantees()
    }

    /// Everything that happens to this client's leases from now on.
    pub fn events(&self) -> Events {
        Events { engine: self.engine.clone(), events: self.locks.events() }
    }

    /// The longest this process was seen to stand still while this client held leases.
    pub fn longest_stall(&self) -> Stall {
        self.locks.longest_stall()
    }

    /// Looks at one lock: who holds it, since when, who waits.
    ///
    /// # Errors
    ///
    /// When the name cannot be a lock's, or the store does not answer.
    pub fn inspect(&self, name: impl AsRef<str>) -> Result<LockInfo> {
        self.engine.wait_for(self.locks.inspect(name))?
    }

    /// Looks at every lock that is held or waited for and whose name starts with `prefix`.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub fn list(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        self.engine.wait_for(self.locks.list(prefix))?
    }

    /// Takes a lock away from its holder; see
    /// [`Locks::force_release`](crate::Locks::force_release).
    ///
    /// # Errors
    ///
    /// When the reason is empty, the name cannot be a lock's, or the store does not answer.
    pub fn force_release(
        &self,
        name: impl AsRef<str>,
        reason: impl Into<String>,
    ) -> Result<Option<Token>> {
        self.engine.wait_for(self.locks.force_release(name, reason))?
    }

    /// Examines the store's set-up: what about it is unsafe.
    ///
    /// # Errors
    ///
    /// When the store does not answer.
    pub fn examine(&self) -> Result<Vec<Finding>> {
        self.engine.wait_for(self.locks.examine())?
    }
}

/// A reader of a client's events, from the moment it was made.
#[derive(Debug)]
pub struct Events {
    engine: Arc<Engine>,
    events: event::Events,
}

impl Iterator for Events {
    type Item = Event;

    /// Waits for the next event; `None` once the client is gone, or inside an async runtime.
    fn next(&mut self) -> Option<Event> {
        self.engine.wait_for(self.events.next()).ok().flatten()
    }
}
