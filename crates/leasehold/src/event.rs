//! The event stream: everything that happens to leases, as it happens.
//! Metrics, logs, histories and the dashboard all hang on it.

use std::time::Duration;

use crate::clock::Moment;
use crate::error::Error;
use crate::holder::HeldBy;
use crate::loss::{Forced, Loss};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

pub(crate) use stream::Announcer;
pub use stream::Events;

mod stream;

/// Something that happened to a lock or a lease of this client.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Event {
    /// When, on the client's clock.
    pub at: Moment,
    /// Which lock.
    pub name: Name,
    /// Which acquisition; `None` for what an operator did.
    pub owner: Option<Owner>,
    /// What.
    pub kind: EventKind,
}

/// What happened.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum EventKind {
    /// An acquisition began.
    Asked,
    /// It waits in the queue, behind whom.
    Waiting(Option<HeldBy>),
    /// It waits in the queue, and the store has stopped answering, or answers with errors. It goes
    /// on waiting while it may.
    Troubled(Error),
    /// It got the lock.
    Granted {
        /// With this token.
        token: Token,
        /// After this long.
        waited: Duration,
    },
    /// The lease was proved again.
    Renewed,
    /// A renewal got no answer.
    Doubtful(Error),
    /// The lease is over, and the holder did not ask for it.
    Lost(Loss),
    /// The lease was given back.
    Released {
        /// After being held this long.
        held: Duration,
    },
    /// An operator released the lock by force.
    Forced(Forced),
    /// An acquisition ended without the lock.
    Refused {
        /// Why.
        why: Refusal,
        /// After this long.
        waited: Duration,
    },
}

/// Why an acquisition ended without the lock.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum Refusal {
    /// Another holds it and the caller would not wait (longer).
    Held(Option<HeldBy>),
    /// It failed.
    Failed(Error),
    /// The caller dropped it.
    Cancelled,
}
