//! Locks are leases, and Leasehold says so.

pub mod backend;
mod client;
pub mod clock;
mod connect;
mod error;
mod event;
pub mod failpoint;
mod guarantees;
mod holder;
mod lease;
mod lock;
mod locks;
mod loss;
mod name;
mod owner;
mod readiness;
mod terms;
mod token;

pub use connect::{Connect, StoreKind, connect};
pub use error::{Error, ErrorKind, Operation, Outcome, Result};
pub use event::{Event, EventKind, Events, Refusal};
pub use guarantees::{Consistency, EndsWith, Guarantees, Scope};
pub use holder::{HeldBy, Holder};
pub use lease::{Lease, LeaseState};
pub use lock::Lock;
pub use locks::Locks;
pub use loss::{Forced, Loss, LossReason};
pub use name::{InvalidName, MAX_NAME_BYTES, Name};
pub use owner::Owner;
pub use terms::{DEFAULT_TTL, MAX_TTL, MIN_TTL, OnDoubt};
pub use token::Token;
