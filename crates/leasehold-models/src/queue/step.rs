//! What clients and the server do.

use super::node::{Answer, Grant, Order, Push, Said};
use super::state::{Call, Client, Phase, State};
use super::{DELAY, Queue, TTL};

/// A step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A client sends a request, which arrives, and hears the answer, all without trouble.
    Do(usize, Order),
    /// A client sends a request. Trouble: it will be late or lost, or the answer will.
    Send(usize, Order),
    /// A client dies.
    Die(usize),
    /// Its request arrives.
    Arrive(usize),
    /// A request that it does not wait for any more arrives.
    ArriveLate(usize),
    /// The answer arrives.
    Hear(usize),
    /// What was pushed to it arrives.
    HearPush(usize),
    /// Its request or the answer is lost; the request may still arrive.
    Lose(usize),
    /// What was pushed to it is lost.
    LosePush(usize),
    /// The server loses the queue.
    LoseQueue,
    /// Time passes.
    Tick,
}

impl Queue {
    pub(super) fn list(&self, state: &State, actions: &mut Vec<Action>) {
        for (who, client) in state.clients.iter().enumerate() {
            self.list_client(state, who, client, actions);
        }
        if state.troubles > 0 && !state.server.queue.is_empty() {
            actions.push(Action::LoseQueue);
        }
        let owes = |client: &Client| match client.phase {
            Phase::Waiting => !client.beaten && client.call.is_none(),
            Phase::Asking | Phase::Going => client.call.is_none(),
            _ => false,
        };
        let pushed = state.clients.iter().any(Client::is_pushed);
        if !state.clients.iter().any(owes) && (!pushed || state.troubles > 0) {
            actions.push(Action::Tick);
        }
    }

    fn list_client(&self, state: &State, who: usize, client: &Client, actions: &mut Vec<Action>) {
        if let Some(call) = client.call {
            actions.push(match call.answer {
                Some(_) => Action::Hear(who),
                None => Action::Arrive(who),
            });
            actions.push(Action::Lose(who));
        }
        if client.orphan.is_some() {
            actions.push(Action::ArriveLate(who));
        }
        if client.push.is_some() {
            actions.push(Action::HearPush(who));
            if state.troubles > 0 {
                actions.push(Action::LosePush(who));
            }
        }
        if client.call.is_none() {
            for &order in self.orders(state, who, client) {
                actions.push(Action::Do(who, order));
                if state.troubles > 0 {
                    actions.push(Action::Send(who, order));
                }
            }
        }
        let lives = !matches!(client.phase, Phase::Away | Phase::Done | Phase::Dead);
        if lives && state.deaths > 0 {
            actions.push(Action::Die(who));
        }
    }

    /// What a client may ask for now.
    fn orders(&self, state: &State, who: usize, client: &Client) -> &'static [Order] {
        match client.phase {
            // Clients are interchangeable: they come in the order of their numbers.
            Phase::Away if who == 0 || state.clients[who - 1].phase != Phase::Away => {
                &[Order::Claim]
            }
            Phase::Asking => &[Order::Claim],
            Phase::Waiting if client.beaten => &[Order::Leave],
            Phase::Waiting => &[Order::Leave, Order::Beat],
            Phase::Holding(deadline) if deadline < TTL => &[Order::Release, Order::Renew],
            Phase::Holding(_) => &[Order::Release],
            Phase::Going => &[Order::Leave],
            _ => &[],
        }
    }

    pub(super) fn apply(&self, state: &mut State, action: Action) {
        match action {
            Action::Do(who, order) => {
                self.send(state, who, order);
                self.apply(state, Action::Arrive(who));
                self.apply(state, Action::Hear(who));
            }
            Action::Send(who, order) => {
                trouble(state);
                self.send(state, who, order);
            }
            Action::Die(who) => {
                state.deaths -= 1;
                // How long it may take is counted from the last death.
                state.stalled = 0;
                orphan(&mut state.clients[who]);
                state.clients[who].push = None;
                state.clients[who].phase = Phase::Dead;
            }
            Action::Arrive(who) => {
                if let Some(call) = state.clients[who].call {
                    let answer = self.arrive(state, who, call.order, call.age);
                    state.clients[who].call = Some(Call { answer: Some(answer), ..call });
                }
            }
            Action::ArriveLate(who) => {
                state.troubled = true;
                if let Some((order, age)) = state.clients[who].orphan.take() {
                    self.arrive(state, who, order, age);
                }
            }
            Action::Hear(who) => {
                if let Some(call) = state.clients[who].call.take() {
                    self.hear(state, who, call);
                }
            }
            Action::HearPush(who) => {
                if let Some(grant) = state.clients[who].push.take()
                    && state.clients[who].phase == Phase::Waiting
                {
                    self.take(state, who, grant);
                }
            }
            Action::Lose(who) => {
                state.troubled = true;
                orphan(&mut state.clients[who]);
                if state.clients[who].phase == Phase::Going {
                    // What is not given back lapses, and who does not beat is passed over.
                    state.clients[who].phase = Phase::Done;
                }
            }
            Action::LosePush(who) => {
                trouble(state);
                state.clients[who].push = None;
            }
            Action::LoseQueue => {
                trouble(state);
                state.server.queue.clear();
            }
            Action::Tick => {
                if state.clients.iter().any(Client::is_pushed) {
                    trouble(state);
                }
                state.tick();
            }
        }
    }

    fn send(&self, state: &mut State, who: usize, order: Order) {
        let client = &mut state.clients[who];
        match order {
            Order::Claim => client.phase = Phase::Asking,
            Order::Beat => client.beaten = true,
            Order::Release | Order::Leave => client.phase = Phase::Going,
            // What clients of this model never ask for is among the rest.
            _ => {}
        }
        client.call = Some(Call { order, age: 0, answer: None });
    }

    /// A request arrives at the server; what the answer must say, is looked at here.
    fn arrive(&self, state: &mut State, who: usize, order: Order, age: u8) -> Answer {
        let id = who as u8;
        let overtakes = order == Order::Claim
            && !state.server.holds(id)
            && state.server.has_live_waiter_before(id);
        // Who was passed over and lives hears it from its next heartbeat at the latest.
        let (answer, Said { push, .. }) = state.server.step(&self.rules, id, order, age);
        if let Some(Push { to, grant }) = push {
            state.clients[usize::from(to)].push = Some(grant);
        }
        let granted = matches!(answer, Answer::Granted(_));
        state.broken.overtaken |= overtakes && granted;
        if answer == Answer::Queued {
            let pushed = push.is_some_and(|push| push.to == id);
            let told = !state.server.holds(id) || pushed;
            let in_queue = state.server.waits(id) || state.server.holds(id);
            state.broken.forgotten |= !told || !in_queue;
        }
        answer
    }

    fn hear(&self, state: &mut State, who: usize, call: Call) {
        let phase = state.clients[who].phase;
        let Some(answer) = call.answer else { return };
        match (phase, answer) {
            (Phase::Asking | Phase::Waiting, Answer::Granted(grant)) => {
                self.take(state, who, grant);
            }
            (Phase::Asking, Answer::Queued) => {
                state.clients[who].phase = Phase::Waiting;
                // The enqueue is heartbeat number 0.
                state.clients[who].beaten = true;
            }
            (Phase::Waiting, Answer::Unknown) if self.habits.enqueues_again => {
                state.clients[who].phase = Phase::Asking;
            }
            (Phase::Holding(deadline), Answer::Granted(grant)) => {
                let deadline = deadline.max(self.deadline(grant));
                state.clients[who].phase = Phase::Holding(deadline);
            }
            (Phase::Holding(_), _) if call.order == Order::Renew => {
                state.clients[who].phase = Phase::Done;
            }
            (Phase::Going, _) => state.clients[who].phase = Phase::Done,
            _ => {}
        }
    }

    fn deadline(&self, grant: Grant) -> u8 {
        if self.habits.counts_from_proof { grant.deadline() } else { grant.span }
    }

    /// A client hears that the lock is its own.
    fn take(&self, state: &mut State, who: usize, grant: Grant) {
        let deadline = self.deadline(grant);
        if deadline == 0 && self.habits.looks_at_grant {
            // Too late: it gives it back, should it be there, and is not served.
            orphan(&mut state.clients[who]);
            state.clients[who].phase = Phase::Going;
            return;
        }
        state.broken.stale |= deadline == 0;
        state.clients[who].phase = Phase::Holding(deadline);
    }
}

/// Nobody waits for this client's request any more; if it is on its way, it may arrive.
fn orphan(client: &mut Client) {
    if let Some(call) = client.call.take()
        && call.answer.is_none()
        && call.age <= DELAY
    {
        client.orphan = Some((call.order, call.age));
    }
}

fn trouble(state: &mut State) {
    state.troubles = state.troubles.saturating_sub(1);
    state.troubled = true;
}
