//! Locks are leases, and Leasehold says so.

pub mod backend;
pub mod clock;
mod error;
mod event;
pub mod failpoint;
mod guarantees;
mod holder;
mod loss;
mod name;
mod owner;
mod token;

pub use error::{Error, ErrorKind, Operation, Outcome, Result};
pub use event::{Event, EventKind, Events, Refusal};
pub use guarantees::{Consistency, EndsWith, Guarantees, Scope};
pub use holder::{HeldBy, Holder};
pub use loss::{Forced, Loss, LossReason};
pub use name::{InvalidName, MAX_NAME_BYTES, Name};
pub use owner::Owner;
pub use token::Token;
