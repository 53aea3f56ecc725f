//! Nodes that forget everything or come back with older data, and what brings them back: the recovery seals a majority of
//! the others with a new epoch *while* it reads their tokens, installs the highest, waits out
//! the longest lease, and only then readmits the node.

use super::Quorum;
use super::node::{Answer, Epoch, Order, Request, Status};
use super::state::{Recovery, State};
use super::step::Action;

impl Quorum {
    /// The steps of faults and recoveries.
    pub(super) fn list_recovery_steps(&self, state: &State, actions: &mut Vec<Action>) {
        let blank = |node: &usize| state.columns[*node].node.status == Status::Blank;
        let lost = |node: &usize| {
            matches!(state.columns[*node].node.status, Status::Blank | Status::Restarted)
        };
        if state.wipes > 0 {
            let wiped = self.members(state).filter(|node| !lost(node));
            actions.extend(wiped.map(Action::Wipe));
        }
        if !self.rules.marker {
            let no_lease_left = !state.attempts.iter().any(|attempt| attempt.lives());
            if no_lease_left || !self.habits.delayed_restart {
                actions.extend(self.members(state).filter(blank).map(Action::Rejoin));
            }
            return;
        }
        let Some(recovery) = state.recovery else {
            if self.next_epoch(state) > self.wipes + 1 {
                // One recovery for each loss, and one that stopped halfway.
                return;
            }
            let stands = |node: &usize| state.columns[*node].node.status == Status::Member;
            let fallen = self.members(state).filter(|node| !stands(node));
            actions.extend(fallen.map(Action::Recover));
            return;
        };
        actions.push(Action::Abandon);
        for node in self.members(state) {
            let column = &state.columns[node];
            if column.node.status == Status::Member && !column.sealed {
                actions.push(Action::Seal(node));
            }
        }
        let sealed = state.columns.iter().filter(|column| column.sealed).count();
        if !recovery.installed && sealed >= self.majority() {
            actions.push(Action::Install);
        }
        if recovery.installed && self.has_waited(state, recovery) {
            actions.push(Action::Readmit);
        }
    }

    /// Whether the longest TTL has passed since the majority was sealed: no lease of an older
    /// epoch can be left, as those are not renewed any more. Where keys vanish at any time, there
    /// is no time to wait for.
    fn has_waited(&self, state: &State, recovery: Recovery) -> bool {
        let older = |attempt: &super::state::Attempt| {
            attempt.lives() && attempt.proved_epoch < recovery.epoch
        };
        !self.habits.wait || !self.bounded || !state.attempts.iter().any(older)
    }

    /// Does such a step.
    pub(super) fn apply_recovery(&self, state: &mut State, action: Action) {
        match action {
            Action::Wipe(node) => {
                match self.goes_back {
                    true => state.columns[node].node.go_back(&self.rules),
                    false => state.columns[node].node.forget(),
                }
                // Its word was counted when it was given; a recovery that had read it has.
                state.wipes -= 1;
                if state.columns[node].recovering {
                    self.abandon(state);
                }
            }
            Action::Rejoin(node) => state.columns[node].node.status = Status::Member,
            Action::Recover(node) => {
                let epoch = self.next_epoch(state);
                state.recovery = Some(Recovery { epoch, most: 0, installed: false });
                state.columns[node].recovering = true;
            }
            Action::Seal(node) => {
                if let Answer::Sealed { last } = self.say(state, node, Order::Seal)
                    && let Some(recovery) = &mut state.recovery
                {
                    recovery.most = recovery.most.max(last);
                    state.columns[node].sealed = true;
                }
            }
            Action::Install => {
                let Some(recovery) = state.recovery else { return };
                let order = Order::Install { token: recovery.most };
                if let Some(node) = target(state)
                    && self.say(state, node, order) == Answer::Yes
                {
                    state.recovery = Some(Recovery { most: 0, installed: true, ..recovery });
                }
            }
            Action::Readmit => {
                if let Some(node) = target(state) {
                    self.say(state, node, Order::Readmit);
                }
                self.abandon(state);
            }
            Action::Abandon => self.abandon(state),
            _ => {}
        }
    }

    /// An epoch that nobody has used.
    fn next_epoch(&self, state: &State) -> Epoch {
        state.columns.iter().map(|column| column.node.epoch).max().unwrap_or(0) + 1
    }

    fn say(&self, state: &mut State, node: usize, order: Order) -> Answer {
        let epoch = state.recovery.map_or(0, |recovery| recovery.epoch);
        let node = &mut state.columns[node].node;
        let request = Request { epoch, list: node.list, order };
        node.step(&self.rules, request)
    }

    fn abandon(&self, state: &mut State) {
        state.recovery = None;
        for column in &mut state.columns {
            column.sealed = false;
            column.recovering = false;
        }
    }
}

/// The node that is being recovered.
pub(super) fn target(state: &State) -> Option<usize> {
    state.columns.iter().position(|column| column.recovering)
}
