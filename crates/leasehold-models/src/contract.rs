//! The contract of one lease: a client, its keeper, and a store that applies requests late or
//! never and whose answers are late or lost; beside them somebody else who wants the lock.
//!
//! It follows `leasehold/src/acquire.rs` and `leasehold/src/lease/`: one
//! acquisition that may go through several owners, is settled when there is no answer, cancelled
//! anywhere, kept, doubted, lost and given back. Time goes in ticks, for all alike (drift is
//! the margin that the code takes off; there is none here). A request is on its way for at
//! most [`DELAY`] ticks, which is less than an owner keeps its tombstone.

pub mod cases;
pub mod state;
mod step;
pub mod store;
mod words;

use stateright::{Model, Property};

use crate::check::Told;
use state::{Ending, Phase, State};
pub use step::Action;
use store::Who;

/// How many ticks a lease lasts.
pub const TTL: u8 = 3;
/// How many ticks a request may be on its way.
pub const DELAY: u8 = 2;
/// How many ticks an owner keeps its tombstone.
pub const TOMBSTONE: u8 = 3;
/// How many owners an acquisition may use up.
pub const OWNERS: usize = 2;
/// How often a question or a release is repeated before the caller is told.
pub const QUESTIONS: u8 = 2;

/// No two holders.
pub const EXCLUSIVE: &str = "X: nobody else holds the lock before the holder's deadline";
/// Nothing is left behind.
pub const LEFT_BEHIND: &str = "L: when all is said and done, no lock is left behind";
/// Its own key is not another's.
pub const OWN_KEY: &str = "H: \"held by another\" is said only if it is";
/// Release tells the truth.
pub const TRUTH: &str = "T: \"it had gone\" is not said of a lock that was given back";
/// No lease that has expired is handed out.
pub const FRESH: &str = "F: a lease is handed out before its deadline";
/// Lost is final.
pub const FINAL: &str = "E: what is lost stays lost";

/// The model.
#[derive(Debug, Clone)]
pub struct Contract {
    /// How many answers may be lost or late.
    pub losses: u8,
    /// What client and store do.
    pub habits: Habits,
}

/// What client and store do. The defaults are right; each of the others must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// The deadline counts from before the request, not from its answer.
    pub counts_from_request: bool,
    /// The loss fires when the deadline passes.
    pub loss_fires: bool,
    /// A lost lease that is found at the store all the same stays lost.
    pub loss_is_final: bool,
    /// A grant is looked at before it is handed out: its deadline may have passed.
    pub looks_at_grant: bool,
    /// A claim without an answer is settled.
    pub settles: bool,
    /// Settling leaves a tombstone for an owner that is not found.
    pub tombstone_when_settled: bool,
    /// An owner that was settled is not used again.
    pub fresh_owner: bool,
    /// A cancelled acquisition is undone.
    pub undoes: bool,
    /// An owner that was found and undone gets a tombstone, too.
    pub tombstone_when_undone: bool,
    /// And undone again, should it be found again.
    pub undoes_again: bool,
    /// An owner that may have a second claim on its way gets a tombstone when its lease is given
    /// back.
    pub tombstone_when_stray: bool,
    /// A late grant is undone before a fresh owner asks.
    pub starts_over_in_order: bool,
    /// And if it cannot be undone, no fresh owner asks.
    pub insists_on_order: bool,
    /// Leaving the queue gives back the lock, too, if it was granted meanwhile.
    pub leaving_releases: bool,
    /// A renewal takes a lock that is free.
    pub renewal_retakes: bool,
    /// A release that was sent again remembers that the first may have been done.
    pub release_remembers: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self {
            counts_from_request: true,
            loss_fires: true,
            loss_is_final: true,
            looks_at_grant: true,
            settles: true,
            tombstone_when_settled: true,
            fresh_owner: true,
            undoes: true,
            tombstone_when_undone: true,
            undoes_again: true,
            tombstone_when_stray: true,
            starts_over_in_order: true,
            insists_on_order: true,
            leaving_releases: true,
            renewal_retakes: false,
            release_remembers: true,
        }
    }
}

impl Model for Contract {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.losses)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.list(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSIVE, |_, state: &State| {
                !(state.believes() && matches!(state.store.lock, Some((Who::Other, _))))
            }),
            Property::always(LEFT_BEHIND, |_, state: &State| {
                // A lease that was lost, or whose release was never answered, lapses.
                let lapses = matches!(state.phase, Phase::Over(Ending::Lost));
                let ours = matches!(state.store.lock, Some((Who::Us(_), _)));
                !(state.is_quiet() && ours && !lapses)
            }),
            Property::always(OWN_KEY, |_, state: &State| !state.broken.own_key),
            Property::always(TRUTH, |_, state: &State| !state.broken.untrue),
            Property::always(FRESH, |_, state: &State| !state.broken.stale),
            Property::always(FINAL, |_, state: &State| !state.broken.revived),
            Property::sometimes("held in doubt", |_, state: &State| {
                state.phase == Phase::Held { doubtful: true }
            }),
            Property::sometimes("given back", |_, state: &State| {
                state.phase == Phase::Over(Ending::Released)
            }),
            Property::sometimes("gone before it was given back", |_, state: &State| {
                state.phase == Phase::Over(Ending::NotHeld)
            }),
            Property::sometimes("a second owner holds", |_, state: &State| {
                state.believes() && state.owner == 1
            }),
            Property::sometimes("adopted with a second claim on its way", |_, state: &State| {
                state.believes() && state.stray
            }),
        ]
    }
}

impl Told for Contract {
    fn tell(&self, before: &State, action: &Action, after: &State) -> String {
        words::tell(self, before, *action, after)
    }
}
