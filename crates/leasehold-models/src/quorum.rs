//! Tokens from a quorum: N independent nodes, a lock and a last token on each, and no clock
//! that anybody trusts (DESIGN, section "Redlock with quorum tokens").
//!
//! 1. On all nodes: the lock, if it is free; and the last token. With a *guess*, nodes whose
//!    last token is smaller store it at once: a majority of those saves the second trip.
//! 2. With a majority of locks: a token above every one seen.
//! 3. On those nodes: store it, if the lock is still mine and the last token is smaller.
//!    With a majority of that, it is returned.
//!
//! Keys vanish at any step, requests and answers are late or lost, clients stop anywhere;
//! a node that restarts with its data is no different from one whose messages are late.
//! [`recovery`](crate::recovery) adds nodes that forget.

pub mod cases;
pub mod node;
mod recover;
pub mod state;
mod step;
mod words;

use stateright::{Model, Property};

use crate::check::Told;
use node::Rules;
use state::{MOST_ATTEMPTS, MOST_NODES, Side, Slot, State};
pub use step::Action;

/// Tokens are unique.
pub const UNIQUE: &str = "U: no token is returned twice";
/// Tokens go with real time.
pub const ORDERED: &str = "RT: what is asked for after a return gets a newer token";
/// So do renewals.
pub const RENEWED: &str = "RT: what is renewed after a newer return is refused";
/// No two holders, within the bounds.
pub const EXCLUSIVE: &str = "X: no two holders while no key vanishes under its holder";
/// Not promised.
pub const COMPLETED: &str = "C: tokens are returned in the order of their size (not promised)";

/// The model, and how much of it is explored.
#[derive(Debug, Clone)]
pub struct Quorum {
    /// How many nodes are on a list.
    pub nodes: usize,
    /// How many attempts are made.
    pub attempts: usize,
    /// What an attempt may guess.
    pub guesses: &'static [Option<node::Token>],
    /// One of the leases is renewed, whichever it is.
    pub renewals: bool,
    /// A key stands from the time its token is stored until its holder stops believing. (A
    /// client keeps to that by counting from before its first request.) Then two holders are
    /// looked for; otherwise keys vanish at any time, and only tokens are looked at.
    pub bounded: bool,
    /// How often a node forgets everything.
    pub wipes: u8,
    /// It does not forget everything, but comes back with the oldest data that it has had.
    pub goes_back: bool,
    /// The second attempt is by a client with another list of nodes.
    pub two_lists: bool,
    /// What nodes check.
    pub rules: Rules,
    /// What clients do.
    pub habits: Habits,
    /// Whether keys that can only stand in the way are left out: fewer states, but a story
    /// without the steps in which they vanish.
    pub reduced: bool,
    /// Whether to look for tokens that are returned out of order.
    pub watch_completion: bool,
}

/// What clients and operators do. The defaults are right; the others must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Habits {
    /// Every attempt has an owner of its own; otherwise the second has the first one's.
    pub fresh_owner: bool,
    /// A token is proposed on top of what a majority said.
    pub second_trip: bool,
    /// A node that forgot is readmitted only when no lease of an older epoch can be left.
    pub wait: bool,
    /// A node that forgot and has no marker comes back only when no lease is left at all.
    pub delayed_restart: bool,
}

impl Default for Habits {
    fn default() -> Self {
        Self { fresh_owner: true, second_trip: true, wait: true, delayed_restart: false }
    }
}

impl Quorum {
    /// Nodes that keep their data, keys that vanish at any time, no guesses, no renewals.
    pub fn new(nodes: usize, attempts: usize) -> Self {
        Self {
            nodes: nodes.clamp(1, MOST_NODES),
            attempts: attempts.clamp(1, MOST_ATTEMPTS),
            guesses: &[None],
            renewals: false,
            bounded: false,
            wipes: 0,
            goes_back: false,
            two_lists: false,
            rules: Rules::default(),
            habits: Habits::default(),
            reduced: false,
            watch_completion: false,
        }
    }

    fn majority(&self) -> usize {
        self.nodes / 2 + 1
    }

    fn sides(&self) -> Vec<Side> {
        let mut sides = vec![if self.two_lists { Side::Both } else { Side::Ours }; self.nodes];
        if self.two_lists {
            sides[0] = Side::Ours;
            sides.push(Side::Theirs);
            sides.truncate(MOST_NODES);
        }
        sides
    }

    /// Whether this attempt's client has the other list.
    fn has_other_list(&self, attempt: usize) -> bool {
        self.two_lists && attempt == 1
    }

    fn is_on_list(&self, attempt: usize, side: Side) -> bool {
        match side {
            Side::Both => true,
            Side::Ours => !self.has_other_list(attempt),
            Side::Theirs => self.has_other_list(attempt),
            Side::Nobodys => false,
        }
    }

    /// The owner that an attempt's requests name.
    fn owner(&self, attempt: usize) -> node::Owner {
        if attempt == 1 && !self.habits.fresh_owner { 0 } else { attempt as node::Owner }
    }
}

impl Model for Quorum {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let mut state = State::new(&self.sides(), self.wipes);
        for column in &mut state.columns {
            for at in 0..MOST_ATTEMPTS {
                if at >= self.attempts || !self.is_on_list(at, column.side) {
                    column.slots[at] = Slot::Done;
                }
            }
        }
        if !self.renewals {
            return vec![state];
        }
        let renewers = 0..self.attempts as u8;
        renewers.map(|renewer| State { renewer: Some(renewer), ..state.clone() }).collect()
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.list_steps(state, actions);
        self.list_recovery_steps(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.apply(&mut next, action);
        next.canonical(self);
        (next != *state).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(UNIQUE, |_, state: &State| !state.broken.unique),
            Property::always(ORDERED, |_, state: &State| !state.broken.ordered),
            Property::sometimes("two tokens returned", |_, state: &State| {
                state.returned.count_ones() >= 2
            }),
        ];
        if self.renewals {
            properties.push(Property::always(RENEWED, |_, state: &State| !state.broken.renewed));
        }
        if self.bounded {
            properties.push(Property::always(EXCLUSIVE, |_, state: &State| state.holders() < 2));
        }
        if self.watch_completion {
            properties
                .push(Property::always(COMPLETED, |_, state: &State| !state.broken.completed));
        }
        properties
    }
}

impl Told for Quorum {
    fn tell(&self, before: &State, action: &Action, after: &State) -> String {
        words::tell(self, before, *action, after)
    }
}
