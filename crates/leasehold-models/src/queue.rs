//! Waiting in the queue of one server (DESIGN, section "redis"): each release grants the lock to
//! the first live waiter and pushes it a message; heartbeats repair what is lost on the way.
//!
//! Clients come once, wait, hold, renew, give back, leave, or die anywhere. Requests, answers and
//! pushes are late or lost, and the queue itself may be lost; the number of such *troubles* is
//! bounded, and when there are none, what is sent arrives before time passes. Every live client
//! in the queue sends a heartbeat in each tick.

pub mod cases;
pub mod node;
pub mod state;
mod step;
mod words;

use stateright::{Model, Property};

use crate::check::Told;
use node::Rules;
use state::State;
pub use step::Action;

/// How many ticks a lease lasts.
pub const TTL: u8 = 3;
/// How many ticks a grant to somebody who waits lasts, until it is renewed.
pub const SHORT: u8 = 2;
/// After how many ticks without a heartbeat somebody in the queue is passed over.
pub const LIVE: u8 = 2;
/// For how many ticks a settled owner keeps its tombstone: its claims are refused.
pub const TOMBSTONE: u8 = 4;
/// How many ticks a request may be on its way.
pub const DELAY: u8 = 2;
/// Ages are not told apart beyond this.
pub const OLDEST: u8 = 4;
/// For how many ticks after the last death or trouble a live client may be in the queue without
/// anybody alive holding the lock: a dead holder's TTL. (By then, waiters that died are passed
/// over; one that dies later gets a grant that is shorter than that.)
pub const PATIENCE: u8 = TTL;

/// Deadlines.
pub const DEADLINE: &str = "D: a holder's deadline is never later than the server's";
/// Exclusion.
pub const EXCLUSIVE: &str = "X: no two holders";
/// Nobody is forgotten.
pub const TOLD: &str =
    "N: a client told to wait is in the queue; one that was granted the lock is told so";
/// Nothing blocks.
pub const MOVING: &str = "B: nothing and nobody dead blocks the queue for long";
/// First come, first served.
pub const ORDERED: &str = "O: no newcomer overtakes a live waiter";
/// No lease that has expired is handed out.
pub const FRESH: &str = "F: a grant is taken before its deadline";

/// The model.
#[derive(Debug, Clone)]
pub struct Queue {
    /// How many clients come.
    pub clients: usize,
    /// How many of them die.
    pub deaths: u8,
    /// How often something is lost or late.
    pub troubles: u8,
    /// What the server does.
    pub rules: Rules,
    /// What clients do.
    pub habits: Habits,
}

/// What clients do. The defaults are right; the others must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// The deadline counts from the request that the grant names, not from the message.
    pub counts_from_proof: bool,
    /// A grant is looked at before it is taken: its deadline may have passed.
    pub looks_at_grant: bool,
    /// A client that is told it is not in the queue enqueues again.
    pub enqueues_again: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self { counts_from_proof: true, looks_at_grant: true, enqueues_again: true }
    }
}

impl Queue {
    /// So many clients, of whom one dies, and one trouble.
    pub fn new(clients: usize) -> Self {
        let (rules, habits) = Default::default();
        Self { clients, deaths: 1, troubles: 1, rules, habits }
    }
}

impl Model for Queue {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.list(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        next.canonical();
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(DEADLINE, |_, state: &State| {
                state.holders().all(|(who, deadline)| {
                    let held = state.server.lock.filter(|held| held.holder == who);
                    held.is_some_and(|held| held.left >= deadline)
                })
            }),
            Property::always(EXCLUSIVE, |_, state: &State| state.holders().count() < 2),
            Property::always(TOLD, |_, state: &State| !state.broken.forgotten),
            Property::always(MOVING, |_, state: &State| state.stalled <= PATIENCE),
            Property::always(ORDERED, |_, state: &State| !state.broken.overtaken),
            Property::always(FRESH, |_, state: &State| !state.broken.stale),
            Property::sometimes("a pushed grant is taken and renewed", |_, state: &State| {
                state.holders().any(|(who, deadline)| who > 0 && deadline == TTL)
            }),
            Property::sometimes("the dead hold up the living", |_, state: &State| {
                state.stalled == PATIENCE
            }),
            Property::sometimes("the last to come holds it", |model, state: &State| {
                state.holders().any(|(who, _)| usize::from(who) + 1 == model.clients)
            }),
        ]
    }
}

impl Told for Queue {
    fn tell(&self, before: &State, action: &Action, after: &State) -> String {
        words::tell(self, before, *action, after)
    }
}
