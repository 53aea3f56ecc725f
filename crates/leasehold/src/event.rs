//! The event stream: everything that happens to leases, as it happens.
//! Metrics, logs, histories and the dashboard all hang on it.

use std::sync::OnceLock;
use std::time::Duration;

use tokio::sync::broadcast;

use crate::clock::Moment;
use crate::error::Error;
use crate::holder::HeldBy;
use crate::loss::{Forced, Loss};
use crate::name::Name;
use crate::observe::ClassId;
use crate::owner::Owner;
use crate::token::Token;

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
    /// It waits in line, behind whom.
    Waiting(Option<HeldBy>),
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

/// Whom an event is about, as those who announce it know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Subject<'a> {
    pub(crate) name: &'a Name,
    pub(crate) owner: Option<Owner>,
    pub(crate) class: ClassId,
}

/// How many events a slow reader may fall behind before it misses some.
const BACKLOG: usize = 1024;

/// Where events are announced. Announcing to nobody costs next to nothing, and the
/// backlog is made for the first reader.
#[derive(Debug, Default)]
pub(crate) struct Announcer(OnceLock<broadcast::Sender<Event>>);

impl Announcer {
    pub(crate) fn announce(&self, event: impl FnOnce() -> Event) {
        if let Some(readers) = self.0.get()
            && readers.receiver_count() > 0
        {
            // Fails only if the last reader left just now.
            let _ = readers.send(event());
        }
    }

    pub(crate) fn subscribe(&self) -> Events {
        let readers = self.0.get_or_init(|| broadcast::Sender::new(BACKLOG));
        Events { receiver: readers.subscribe(), missed: 0 }
    }
}

/// A reader of a client's events, from the moment it was made.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
    missed: u64,
}

impl Events {
    /// The next event; `None` once the client is gone.
    ///
    /// A reader that falls more than a thousand events behind misses the oldest;
    /// [`Events::missed`] counts them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(count)) => self.missed += count,
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }

    /// How many events this reader missed by being slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}
