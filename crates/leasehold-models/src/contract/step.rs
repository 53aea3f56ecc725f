//! What client, keeper and store do.

use super::state::{Call, Ending, Phase, State, Task, Undo, Work};
use super::store::{Answer, Order, Who};
use super::{Contract, OWNERS, QUESTIONS, TTL};

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// The caller asks; again, when it is in the queue.
    Ask,
    /// The caller does not want it any more.
    Cancel,
    /// The keeper renews.
    Renew,
    /// The holder gives it back.
    Release,
    /// A request reaches the store.
    Arrive(Waiting),
    /// A request that nobody waits for any more reaches the store.
    ArriveLate(usize),
    /// An answer reaches whoever waits for it.
    Hear(Waiting),
    /// Whoever waits for an answer stops waiting.
    TimeOut(Waiting),
    /// Somebody else takes the free lock.
    OtherTakes,
    /// And gives it back.
    OtherLeaves,
    /// Time passes.
    Tick,
}

/// Who waits for an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The caller.
    Caller,
    /// The keeper.
    Keeper,
    /// The background.
    Background,
}

const WAITING: [Waiting; 3] = [Waiting::Caller, Waiting::Keeper, Waiting::Background];

impl State {
    /// The request that is waited for.
    pub(super) fn call(&self, who: Waiting) -> Option<Call> {
        match who {
            Waiting::Caller => self.caller,
            Waiting::Keeper => self.keeper,
            Waiting::Background => self.background.and_then(|task| task.call),
        }
    }

    fn set_call(&mut self, who: Waiting, call: Option<Call>) {
        match who {
            Waiting::Caller => self.caller = call,
            Waiting::Keeper => self.keeper = call,
            Waiting::Background => {
                if let Some(task) = &mut self.background {
                    task.call = call;
                }
            }
        }
    }
}

impl Contract {
    pub(super) fn list(&self, state: &State, actions: &mut Vec<Action>) {
        match state.phase {
            Phase::Idle => actions.push(Action::Ask),
            Phase::Place => actions.extend([Action::Ask, Action::Cancel]),
            Phase::Asking { .. } | Phase::Settling { .. } | Phase::StartingOver(_) => {
                actions.push(Action::Cancel);
            }
            Phase::Held { .. } => {
                actions.push(Action::Release);
                if state.keeper.is_none() {
                    actions.push(Action::Renew);
                }
            }
            Phase::Releasing { .. } | Phase::Over(_) => {}
        }
        for who in WAITING {
            let Some(call) = state.call(who) else { continue };
            if call.may_arrive() {
                actions.push(Action::Arrive(who));
            }
            if call.answer.is_some() {
                actions.push(Action::Hear(who));
            }
            let never = call.answer.is_none() && !call.may_arrive();
            if state.losses > 0 || never {
                actions.push(Action::TimeOut(who));
            }
        }
        actions.extend((0..state.orphans.len()).map(Action::ArriveLate));
        match state.store.lock {
            None => actions.push(Action::OtherTakes),
            Some((Who::Other, _)) => actions.push(Action::OtherLeaves),
            Some(_) => {}
        }
        actions.push(Action::Tick);
    }

    pub(super) fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Ask => self.ask(state),
            Action::Cancel => self.cancel(state),
            Action::Renew => state.keeper = Some(Call::new(Order::Renew, state.owner)),
            Action::Release => self.release(state),
            Action::Arrive(who) => {
                if let Some(mut call) = state.call(who) {
                    call.answer = Some(self.arrive(state, call.order, call.owner));
                    state.set_call(who, Some(call));
                }
            }
            Action::ArriveLate(at) => {
                let orphan = state.orphans.remove(at);
                self.arrive(state, orphan.order, orphan.owner);
            }
            Action::Hear(who) => {
                let Some(call) = state.call(who) else { return };
                state.set_call(who, None);
                if let Some(answer) = call.answer {
                    self.hear(state, who, call.age, answer);
                }
            }
            Action::TimeOut(who) => {
                let call = state.call(who);
                state.set_call(who, None);
                state.abandon(call);
                state.losses = state.losses.saturating_sub(1);
                self.time_out(state, who);
            }
            Action::OtherTakes => state.store.lock = Some((Who::Other, TTL)),
            Action::OtherLeaves => state.store.other_leaves(),
            Action::Tick => {
                state.tick();
                if state.believes() && state.deadline == 0 && self.habits.loss_fires {
                    self.lose(state);
                }
            }
        }
    }

    fn arrive(&self, state: &mut State, order: Order, owner: u8) -> Answer {
        let answer = state.store.step(&self.habits, owner, order);
        state.given_back |= owner == state.owner && answer == Answer::Released;
        answer
    }

    fn ask(&self, state: &mut State) {
        state.phase = Phase::Asking { again: state.phase == Phase::Place };
        state.caller = Some(Call::new(Order::Claim, state.owner));
    }

    fn cancel(&self, state: &mut State) {
        if self.habits.undoes {
            let step = if state.phase == Phase::Place { Undo::Leave } else { Undo::Settle };
            self.undo_in_background(state, step);
        }
        self.end(state, Ending::Cancelled);
    }

    fn undo_in_background(&self, state: &mut State, step: Undo) {
        let call = Some(Call::new(order(step), state.owner));
        state.background = Some(Task { owner: state.owner, work: Work::Undo(step), call });
    }

    fn release(&self, state: &mut State) {
        // First the renewing stops, then the store is told.
        let renewal = state.keeper.take();
        state.abandon(renewal);
        let in_time = true;
        state.phase = Phase::Releasing { sent: 1, may_be_done: false, in_time };
        state.caller = Some(Call::new(Order::Release, state.owner));
    }

    fn lose(&self, state: &mut State) {
        let renewal = state.keeper;
        if self.habits.loss_is_final {
            state.keeper = None;
            state.abandon(renewal);
        }
        // Others need not wait for the rest of its TTL.
        let call = Some(Call::new(Order::Release, state.owner));
        state.background = Some(Task { owner: state.owner, work: Work::Release, call });
        self.end(state, Ending::Lost);
    }

    /// It is over for the caller.
    fn end(&self, state: &mut State, ending: Ending) {
        let call = state.caller.take();
        state.abandon(call);
        state.phase = Phase::Over(ending);
        state.deadline = 0;
        state.given_back = false;
    }

    fn hear(&self, state: &mut State, who: Waiting, age: u8, answer: Answer) {
        match who {
            Waiting::Caller => self.hear_caller(state, age, answer),
            Waiting::Keeper => self.hear_keeper(state, age, answer),
            Waiting::Background => self.hear_background(state, answer),
        }
    }

    fn hear_caller(&self, state: &mut State, age: u8, answer: Answer) {
        match (state.phase, answer) {
            (Phase::Asking { .. } | Phase::Settling { .. }, Answer::Yours(left)) => {
                self.granted(state, age, left);
            }
            (Phase::Asking { .. }, Answer::Queued) => state.phase = Phase::Place,
            (Phase::Asking { .. }, _) => {
                // Only somebody in the queue can be told so here, and only by mistake: everybody
                // else who finds the lock held takes a place.
                state.broken.own_key = true;
                self.end(state, Ending::Refused);
            }
            (Phase::Settling { .. }, _) => self.next_owner(state),
            (Phase::StartingOver(step), answer) => match self.undo(step, answer) {
                Some(next) => {
                    state.phase = Phase::StartingOver(next);
                    state.caller = Some(Call::new(order(next), state.owner));
                }
                None => self.next_owner(state),
            },
            (Phase::Releasing { may_be_done, .. }, answer) => {
                let released = answer == Answer::Released;
                let counts = released || (may_be_done && self.habits.release_remembers);
                state.broken.untrue |= !counts && state.given_back;
                self.settle_stray(state);
                self.end(state, if counts { Ending::Released } else { Ending::NotHeld });
            }
            _ => {}
        }
    }

    /// The deadline counts from before the request that proved the lease.
    fn deadline(&self, age: u8, left: u8) -> u8 {
        if self.habits.counts_from_request { left.saturating_sub(age) } else { left }
    }

    fn granted(&self, state: &mut State, age: u8, left: u8) {
        let deadline = self.deadline(age, left);
        if deadline == 0 && self.habits.looks_at_grant {
            state.phase = Phase::StartingOver(Undo::Settle);
            if self.habits.starts_over_in_order {
                state.caller = Some(Call::new(Order::Settle, state.owner));
            } else {
                self.undo_in_background(state, Undo::Settle);
                self.next_owner(state);
            }
            return;
        }
        state.broken.stale |= deadline == 0;
        state.deadline = deadline;
        state.phase = Phase::Held { doubtful: false };
    }

    /// Goes on with a fresh owner, if there are any left.
    fn next_owner(&self, state: &mut State) {
        if usize::from(state.owner) + 1 == OWNERS {
            self.end(state, Ending::Failed);
            return;
        }
        if self.habits.fresh_owner {
            state.owner += 1;
        }
        state.stray = false;
        state.given_back = false;
        state.phase = Phase::Asking { again: false };
        state.caller = Some(Call::new(Order::Claim, state.owner));
    }

    fn hear_keeper(&self, state: &mut State, age: u8, answer: Answer) {
        let lost = state.phase == Phase::Over(Ending::Lost);
        match answer {
            Answer::Yours(left) if state.believes() || lost => {
                state.broken.revived |= lost;
                state.deadline = state.deadline.max(self.deadline(age, left));
                state.phase = Phase::Held { doubtful: false };
            }
            _ if state.believes() => self.lose(state),
            _ => {}
        }
    }

    fn hear_background(&self, state: &mut State, answer: Answer) {
        let Some(mut task) = state.background.take() else { return };
        match task.work {
            Work::Undo(step) => {
                if let Some(next) = self.undo(step, answer) {
                    task.work = Work::Undo(next);
                    task.call = Some(Call::new(order(next), task.owner));
                    state.background = Some(task);
                }
            }
            Work::Release => self.settle_stray(state),
        }
    }

    /// What comes after this step of an undoing; `None` when it is done.
    fn undo(&self, step: Undo, answer: Answer) -> Option<Undo> {
        match (step, answer) {
            (Undo::Settle, Answer::Yours(_)) => Some(Undo::Release),
            // Only an owner that is not found gets a tombstone: a second claim may still be
            // on its way, or have arrived since.
            (Undo::Release, _) if !self.habits.tombstone_when_undone => None,
            (Undo::Release, _) if self.habits.undoes_again => Some(Undo::Settle),
            (Undo::Release, _) => Some(Undo::Tombstone),
            _ => None,
        }
    }

    /// Keeps a claim that is still on its way from taking the lock that is no longer held.
    fn settle_stray(&self, state: &mut State) {
        if std::mem::take(&mut state.stray) && self.habits.tombstone_when_stray {
            self.undo_in_background(state, Undo::Settle);
        }
    }

    fn time_out(&self, state: &mut State, who: Waiting) {
        match who {
            Waiting::Caller => self.caller_hears_nothing(state),
            Waiting::Keeper if state.believes() => state.phase = Phase::Held { doubtful: true },
            Waiting::Keeper => {}
            Waiting::Background => {
                let Some(task) = state.background else { return };
                match task.work {
                    // Until there is an answer.
                    Work::Undo(step) => {
                        state.set_call(
                            Waiting::Background,
                            Some(Call::new(order(step), task.owner)),
                        );
                    }
                    // Once: the lease lapses.
                    Work::Release => {
                        state.background = None;
                        self.settle_stray(state);
                    }
                }
            }
        }
    }

    fn caller_hears_nothing(&self, state: &mut State) {
        match state.phase {
            Phase::Asking { again } => {
                if !self.habits.settles {
                    self.next_owner(state);
                    return;
                }
                state.stray |= again;
                state.phase = Phase::Settling { asked: 1 };
                state.caller = Some(Call::new(Order::Settle, state.owner));
            }
            Phase::Settling { asked } if asked < QUESTIONS => {
                state.phase = Phase::Settling { asked: asked + 1 };
                state.caller = Some(Call::new(Order::Settle, state.owner));
            }
            // The trace stays unknown: it goes on being undone.
            Phase::StartingOver(_) if !self.habits.insists_on_order => {
                self.undo_in_background(state, Undo::Settle);
                self.next_owner(state);
            }
            Phase::Settling { .. } | Phase::StartingOver(_) => {
                self.undo_in_background(state, Undo::Settle);
                self.end(state, Ending::Failed);
            }
            Phase::Releasing { sent, may_be_done, in_time } if sent < QUESTIONS => {
                let phase = Phase::Releasing {
                    sent: sent + 1,
                    may_be_done: may_be_done || in_time,
                    in_time: state.deadline > 0,
                };
                state.phase = phase;
                state.caller = Some(Call::new(Order::Release, state.owner));
            }
            Phase::Releasing { .. } => {
                // The store does not answer: it is sent again, or lapses.
                let call = Some(Call::new(Order::Release, state.owner));
                state.background = Some(Task { owner: state.owner, work: Work::Release, call });
                self.end(state, Ending::Lost);
            }
            _ => {}
        }
    }
}

fn order(step: Undo) -> Order {
    match step {
        Undo::Settle | Undo::Tombstone => Order::Settle,
        Undo::Release => Order::Release,
        Undo::Leave => Order::Leave,
    }
}
