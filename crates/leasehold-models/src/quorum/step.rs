//! What clients do and what becomes of their requests.

use super::Quorum;
use super::node::{Answer, Epoch, Node, Order, Request, Token};
use super::state::{Attempt, Phase, Side, Slot, State};

/// A step. Nodes are named by their place in the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// An attempt begins: its claims go out to all nodes.
    Ask {
        /// Which.
        attempt: usize,
        /// With this guess.
        guess: Option<Token>,
        /// Knowing this epoch.
        epoch: Epoch,
    },
    /// A claim reaches a node.
    Claim(usize, usize),
    /// A majority of locks is there: the client decides on a token and sends it.
    Vote(usize, Token),
    /// A token reaches a node.
    Store(usize, usize),
    /// A majority has stored it: the attempt returns.
    Return(usize),
    /// The holder begins to renew, knowing this epoch.
    Renew(usize, Epoch),
    /// A renewal reaches a node.
    Prove(usize, usize),
    /// A majority has proved the lease.
    Renewed(usize),
    /// The client stops, runs out of time, releases, or is told to give up.
    End(usize),
    /// A lock's key vanishes.
    Vanish(usize),
    /// A node forgets everything.
    Wipe(usize),
    /// A node that forgot everything goes on as if nothing had happened.
    Rejoin(usize),
    /// The recovery of a node begins.
    Recover(usize),
    /// It seals a node and reads its token.
    Seal(usize),
    /// It tells the node the highest token of a majority.
    Install,
    /// It readmits the node.
    Readmit,
    /// It stops halfway.
    Abandon,
}

impl Quorum {
    /// The steps of clients, their requests, and keys.
    pub(super) fn list_steps(&self, state: &State, actions: &mut Vec<Action>) {
        for at in 0..self.attempts {
            self.list_attempt(state, at, actions);
        }
        for node in self.members(state) {
            let Some(owner) = state.columns[node].node.lock else { continue };
            let stands = |at: usize| {
                let stored = state.columns[node].slots[at] == Slot::Stored;
                self.bounded && stored && state.attempts[at].lives()
            };
            let mut of_owner = (0..self.attempts).filter(|at| self.owner(*at) == owner);
            // What one attempt of an owner undoes, it undoes for all of them.
            if of_owner.any(|at| state.attempts[at].phase != Phase::Idle && !stands(at)) {
                actions.push(Action::Vanish(node));
            }
        }
    }

    fn list_attempt(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let attempt = &state.attempts[at];
        if attempt.phase == Phase::Idle {
            // Attempts are interchangeable: they begin in the order of their numbers.
            let next = at == 0 || state.attempts[at - 1].phase != Phase::Idle;
            let free = self.habits.fresh_owner || at != 1 || !state.attempts[0].lives();
            if next && free {
                for epoch in self.known_epochs(state) {
                    for &guess in self.guesses {
                        actions.push(Action::Ask { attempt: at, guess, epoch });
                    }
                }
            }
            return;
        }
        for (node, column) in state.columns.iter().enumerate() {
            match column.slots[at] {
                _ if !self.is_on_list(at, column.side) => {}
                Slot::Asked => actions.push(Action::Claim(at, node)),
                Slot::Storing => actions.push(Action::Store(at, node)),
                _ => {}
            }
            let renewing = attempt.phase == Phase::Renewing;
            if renewing && column.side != Side::Nobodys && column.proved & (1 << at) == 0 {
                actions.push(Action::Prove(at, node));
            }
        }
        match attempt.phase {
            Phase::Asking => {
                actions.extend(self.votes(state, at).map(|token| Action::Vote(at, token)));
            }
            // Of a renewal that nothing newer was returned before, nothing can be said that is
            // not true; and it changes nothing, unless it lets the lease outlive an epoch.
            Phase::Held if state.renews(at) && (self.bounded || state.newest() > attempt.token) => {
                let epochs = self.known_epochs(state);
                actions.extend(epochs.map(|epoch| Action::Renew(at, epoch)));
            }
            Phase::Renewing => {
                let proved = state.columns.iter().filter(|c| c.proved & (1 << at) != 0).count();
                if proved >= self.majority() {
                    actions.push(Action::Renewed(at));
                }
            }
            _ => {}
        }
        let stored = state.count(at, |slot| slot == Slot::Stored);
        let decides = matches!(attempt.phase, Phase::Asking | Phase::Storing);
        if decides && stored >= self.majority() && self.habits.second_trip {
            actions.push(Action::Return(at));
        }
        // Where keys vanish anyway, an attempt that stops is one that nothing more is seen of.
        if attempt.lives() && (self.bounded || !self.habits.fresh_owner) {
            actions.push(Action::End(at));
        }
    }

    /// The tokens that the client may decide on, depending on which answers it has seen: one
    /// more than the highest of any majority that granted the lock.
    fn votes(&self, state: &State, at: usize) -> impl Iterator<Item = Token> {
        let mut seen: Vec<Token> = Vec::new();
        for column in &state.columns {
            match column.slots[at] {
                Slot::Granted(last) => seen.push(last),
                Slot::Stored => seen.extend(state.attempts[at].guess),
                _ => {}
            }
        }
        seen.sort_unstable();
        let mut highest = seen.split_off((self.majority() - 1).min(seen.len()));
        highest.dedup();
        let above = u8::from(self.habits.second_trip);
        highest.into_iter().map(move |last| last + above)
    }

    /// The epochs that a client may know of.
    fn known_epochs(&self, state: &State) -> impl Iterator<Item = Epoch> {
        let mut epochs: Vec<Epoch> =
            self.members(state).map(|node| state.columns[node].node.epoch).collect();
        epochs.sort_unstable();
        epochs.dedup();
        epochs.into_iter()
    }

    /// The places of nodes.
    pub(super) fn members<'a>(&self, state: &'a State) -> impl Iterator<Item = usize> + use<'a> {
        (0..state.columns.len()).filter(|at| state.columns[*at].side != Side::Nobodys)
    }

    /// What an attempt sends to a node for this order.
    pub(super) fn request(&self, state: &State, at: usize, order: Order) -> Request {
        let list = u8::from(self.has_other_list(at));
        let epoch = match order {
            Order::Renew { .. } => state.attempts[at].renewal_epoch,
            _ => state.attempts[at].epoch,
        };
        Request { epoch, list, order }
    }

    /// The node after this request, and its answer.
    pub(super) fn put(
        &self,
        state: &State,
        at: usize,
        node: usize,
        order: Order,
    ) -> (Node, Answer) {
        let mut after = state.columns[node].node;
        let answer = after.step(&self.rules, self.request(state, at, order));
        (after, answer)
    }

    /// The order that this step brings to a node, and whose it is.
    pub(super) fn order(&self, state: &State, action: Action) -> Option<(usize, usize, Order)> {
        let (at, node) = match action {
            Action::Claim(at, node) | Action::Store(at, node) | Action::Prove(at, node) => {
                (at, node)
            }
            _ => return None,
        };
        let (owner, attempt) = (self.owner(at), &state.attempts[at]);
        let order = match action {
            Action::Claim(..) => Order::Claim { owner, guess: attempt.guess },
            Action::Store(..) => Order::Store { owner, token: attempt.token },
            _ => Order::Renew { owner, token: attempt.token },
        };
        Some((at, node, order))
    }

    /// Does a step.
    pub(super) fn apply(&self, state: &mut State, action: Action) {
        if let Some((at, node, order)) = self.order(state, action) {
            let (after, answer) = self.put(state, at, node, order);
            state.columns[node].node = after;
            self.answered(state, at, node, action, answer);
            return;
        }
        match action {
            Action::Ask { attempt, guess, epoch } => {
                let floor = state.newest();
                let phase = Phase::Asking;
                state.attempts[attempt] =
                    Attempt { phase, epoch, proved_epoch: epoch, guess, floor, ..Attempt::IDLE };
            }
            Action::Vote(at, token) => self.vote(state, at, token),
            Action::Return(at) => {
                if state.attempts[at].phase == Phase::Asking {
                    state.attempts[at].token = state.attempts[at].guess.unwrap_or_default();
                }
                self.finish(state, at);
            }
            Action::Renew(at, epoch) => {
                state.attempts[at].phase = Phase::Renewing;
                state.attempts[at].renewal_epoch = epoch;
                state.attempts[at].floor = state.newest();
            }
            Action::Renewed(at) => self.renewed(state, at),
            Action::End(at) => self.end(state, at),
            Action::Vanish(node) => state.columns[node].node.vanish(),
            _ => self.apply_recovery(state, action),
        }
    }

    fn answered(&self, state: &mut State, at: usize, node: usize, action: Action, answer: Answer) {
        let phase = state.attempts[at].phase;
        let slot = &mut state.columns[node].slots[at];
        match (action, answer) {
            (Action::Prove(..), Answer::Yes) => {
                // What is renewed stands as long as what was stored.
                if self.bounded && *slot == Slot::Done {
                    *slot = Slot::Stored;
                }
                state.columns[node].proved |= 1 << at;
            }
            (Action::Prove(..), _) => {}
            (Action::Store(..), Answer::Yes) if phase != Phase::Over => *slot = Slot::Stored,
            // Too late for the vote: the key is there, and nobody counts it.
            (Action::Claim(..), Answer::Granted { last, stored }) if phase == Phase::Asking => {
                let counts = stored && self.habits.second_trip;
                *slot = if counts { Slot::Stored } else { Slot::Granted(last) };
            }
            (Action::Claim(..), Answer::Granted { .. }) | (Action::Store(..), Answer::Yes) => {
                *slot = Slot::Done;
            }
            // A refusal that its client does not act on is like a request that is late for
            // ever: the slot stays, and there is nothing new to explore.
            _ => {}
        }
    }

    fn vote(&self, state: &mut State, at: usize, token: Token) {
        state.attempts[at].token = token;
        state.attempts[at].phase = Phase::Storing;
        for column in &mut state.columns {
            if matches!(column.slots[at], Slot::Granted(_) | Slot::Stored) {
                column.slots[at] = Slot::Storing;
            }
        }
        if !self.habits.second_trip {
            self.finish(state, at);
        }
    }

    /// The attempt returns its token.
    fn finish(&self, state: &mut State, at: usize) {
        let newest = state.newest();
        let Attempt { token, floor, .. } = state.attempts[at];
        let bit = 1 << token;
        state.broken.unique |= state.returned & bit != 0;
        state.broken.ordered |= token <= floor;
        state.broken.completed |= self.watch_completion && token < newest;
        state.returned |= bit;
        state.attempts[at].floor = 0;
        // Who holds it, matters only where keys stand or are renewed.
        if self.bounded || state.renews(at) || !self.habits.fresh_owner {
            state.attempts[at].phase = Phase::Held;
        } else {
            self.end(state, at);
        }
        for column in &mut state.columns {
            let slot = &mut column.slots[at];
            let matters = self.bounded && *slot == Slot::Stored;
            if !matters && !matches!(slot, Slot::Asked | Slot::Storing) {
                *slot = Slot::Done;
            }
        }
    }

    fn renewed(&self, state: &mut State, at: usize) {
        let Attempt { token, floor, .. } = state.attempts[at];
        state.broken.renewed |= floor > token;
        let attempt = &mut state.attempts[at];
        attempt.floor = 0;
        attempt.proved_epoch = std::mem::take(&mut attempt.renewal_epoch);
        for column in &mut state.columns {
            column.proved &= !(1 << at);
        }
        // With keys that stand, a lease is renewed for as long as its holder likes.
        if self.bounded {
            state.attempts[at].phase = Phase::Held;
        } else {
            self.end(state, at);
        }
    }

    fn end(&self, state: &mut State, at: usize) {
        let attempt = &mut state.attempts[at];
        attempt.phase = Phase::Over;
        attempt.floor = 0;
        attempt.proved_epoch = 0;
        attempt.renewal_epoch = 0;
        for column in &mut state.columns {
            column.proved &= !(1 << at);
            if !matches!(column.slots[at], Slot::Asked | Slot::Storing) {
                column.slots[at] = Slot::Done;
            }
        }
    }
}
