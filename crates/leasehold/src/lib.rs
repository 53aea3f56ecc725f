//! Locks are leases, and Leasehold says so.
//!
//! A lease ends: by its TTL, with its session, by an operator. Its holder may be
//! paused when that happens. So every acquisition carries a **fencing token** that the
//! resource checks, a **deadline** on the holder's own clock, and a **loss** that is
//! signalled by it.
//!
//! ```
//! use std::time::Duration;
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! let locks = leasehold::connect("memory:").await?; // or sqlite: for the processes of this machine
//!
//! let lease = locks
//!     .lock("inventory:item42")
//!     .ttl(Duration::from_secs(30))
//!     .wait(Duration::from_secs(10))
//!     .acquire()
//!     .await?;
//! println!("write with token {}, for at most {:?}", lease.token(), lease.remaining());
//! lease.release().await?;
//! # Ok::<(), leasehold::Error>(()) }).unwrap();
//! ```
//!
//! Or as a scope that renews, stops the work on loss and always releases:
//! [`Lock::run`].
//!
//! # The life of a lease
//!
//! ```text
//!              granted                    a renewal got no answer
//!   (asking) ───────────▶ Held ───────────────────────────────▶ Doubtful
//!                          ▲                                        │
//!                          └───────────── proved again ─────────────┘
//!   Held, Doubtful ── deadline passes · another's · forced · session ended ──▶ Lost(reason)
//!   Held, Doubtful ── release() ──▶ Released
//! ```
//!
//! * The **deadline** counts from before the request was sent that proved the lease, less
//!   1 % and 2 ms, on a clock that counts suspended time.
//! * A renewal that got no answer is **doubt**: [`Lease::checkpoint`] waits while ownership
//!   is proved again, and [`OnDoubt`] says how often.
//! * A **loss** is final, fires by a timer when nothing answers, and has a [`LossReason`].
//! * An acquire that got **no answer** is settled with the store, never guessed.
//! * **Dropping** any future or guard leaks nothing.
//!
//! What this cannot do: stop a process that is itself stopped. Its token does, at the
//! resource.
//!
//! # Modules
//!
//! [`fence`] is the resource side: what refuses a token that is too low.
//! [`backend`] is for those who write a store, [`clock`] for those who test with time, and
//! `failpoint` (with the feature `failpoints`) for those who test the library itself.

/// The README's examples compile.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

// In tests under `--cfg shuttle` another scheduler decides who runs when: see `schedules.rs`.
#[cfg(all(test, shuttle))]
extern crate shuttle_parking_lot as parking_lot;
#[cfg(all(test, shuttle))]
extern crate shuttle_tokio as tokio;

mod acquire;
pub mod backend;
#[cfg(not(all(test, shuttle)))]
pub mod blocking;
#[cfg(test)]
mod callers;
mod client;
pub mod clock;
mod connect;
mod context;
mod detach;
mod error;
mod event;
#[cfg(feature = "failpoints")]
pub mod failpoint;
#[cfg(not(feature = "failpoints"))]
#[allow(unreachable_pub)]
mod failpoint;
pub mod fence;
mod guarantees;
mod holder;
mod kind;
mod lease;
mod lock;
mod locks;
mod loss;
mod name;
pub mod observe;
mod owner;
mod readiness;
mod runtime;
#[cfg(all(test, shuttle))]
mod schedules;
mod store_kind;
mod terms;
mod token {
    pub use leasehold_fence::Token;
}

#[doc(inline)]
pub use backend::{Finding, ForcedInfo, LeaseInfo, LockInfo, Severity};
pub use connect::{Connect, connect};
pub use error::{Error, ErrorKind, Operation, Outcome, Result};
pub use event::{Event, EventKind, Events, Refusal};
pub use guarantees::{Consistency, EndsWith, Guarantees, Scope};
pub use holder::{HeldBy, Holder};
pub use kind::{LockId, LockKind};
pub use lease::{Lease, LeaseState};
pub use lock::Lock;
pub use locks::Locks;
pub use loss::{Forced, Loss, LossReason};
pub use name::{InvalidName, MAX_NAME_BYTES, Name};
pub use owner::Owner;
pub use store_kind::{SetUp, StoreKind};
pub use terms::{DEFAULT_TTL, MAX_TTL, MIN_TTL, OnDoubt};
pub use token::Token;
