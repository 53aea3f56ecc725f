//! One call to all nodes at once, whose answers are taken as they come.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll as Progress, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep, sleep_until};

use super::super::redis::script::Call;
use super::asking::Asking;
use super::node::{Node, Said};

/// The answers that are still to come. Dropped, it does not take its requests back: nobody
/// hears their answers, and a node that gives none is found out later.
pub(super) struct Poll {
    votes: Arc<Votes>,
    asking: Vec<(Arc<Node>, Arc<Asking>)>,
    until: Instant,
    alarm: Option<Pin<Box<Sleep>>>,
}

/// What the nodes have said so far. It is noted by whoever completes a request, in place: a
/// task for each, woken for each answer, would cost more than the answers.
pub(super) struct Votes {
    state: Mutex<State>,
    /// Fewer answers than this decide nothing, and wake nobody.
    enough: usize,
}

struct State {
    heard: VecDeque<(usize, Said)>,
    /// How many were heard, or taken from `heard`.
    came: usize,
    pending: usize,
    waiter: Option<Waker>,
    late: Option<Late>,
}

/// What to do with answers that come when the vote is over.
pub(super) type Late = Box<dyn FnMut(usize, Said) + Send>;

impl Poll {
    /// Calls all of these nodes; answers that take longer than this do not count.
    pub(super) fn new(nodes: &[Arc<Node>], call: Call, limit: Duration) -> Self {
        let call = Arc::new(call);
        let majority = nodes.len() / 2 + 1;
        let state = State {
            heard: VecDeque::with_capacity(nodes.len()),
            came: 0,
            pending: nodes.len(),
            waiter: None,
            late: None,
        };
        // A majority of one mind, or so many of another that there is none.
        let enough = majority.min(nodes.len() - majority + 1);
        let votes = Arc::new(Votes { state: Mutex::new(state), enough });
        let asking = nodes.iter().map(|node| {
            let (asked, call) = (node.clone(), call.clone());
            let work = Box::pin(async move { asked.ask(&call).await });
            (node.clone(), Asking::begin(node.index, work, votes.clone()))
        });
        let asking = asking.collect();
        Self { votes, asking, until: Instant::now() + limit, alarm: None }
    }

    /// How many may still answer.
    pub(super) fn pending(&self) -> usize {
        let state = self.votes.state.lock();
        state.pending + state.heard.len()
    }

    /// The next answer: which node, and what it said. `None` when there is none any more, or
    /// time is up.
    pub(super) async fn next(&mut self) -> Option<(usize, Said)> {
        poll_fn(|cx| self.poll_next(cx)).await
    }

    fn poll_next(&mut self, cx: &mut Context<'_>) -> Progress<Option<(usize, Said)>> {
        {
            let mut state = self.votes.state.lock();
            if let Some(heard) = state.heard.pop_front() {
                return Progress::Ready(Some(heard));
            }
            if state.pending == 0 {
                return Progress::Ready(None);
            }
            match &mut state.waiter {
                Some(waiter) => waiter.clone_from(cx.waker()),
                waiter => *waiter = Some(cx.waker().clone()),
            }
        }
        let until = self.until;
        let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(until)));
        alarm.as_mut().poll(cx).map(|()| None)
    }

    /// From now on answers go there.
    pub(super) fn hand_over(self, late: Late) {
        self.votes.state.lock().waiter = None;
        self.votes.tell(late);
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        let pending = {
            let mut state = self.votes.state.lock();
            state.waiter = None;
            state.pending
        };
        if pending > 0 {
            for (node, asking) in self.asking.drain(..) {
                node.unanswered.look_after(asking);
            }
        }
    }
}

impl Votes {
    /// A node's answer.
    pub(super) fn hear(&self, node: usize, said: Said) {
        let mut state = self.state.lock();
        state.pending -= 1;
        state.came += 1;
        state.heard.push_back((node, said));
        let late = state.late.take();
        let waiter = match state.came >= self.enough || state.pending == 0 {
            true => state.waiter.take(),
            false => None,
        };
        drop(state);
        if let Some(late) = late {
            self.tell(late);
        }
        if let Some(waiter) = waiter {
            waiter.wake();
        }
    }

    /// What was heard goes there, and so does all that comes. (Not under the lock: it may ask
    /// nodes itself.)
    fn tell(&self, mut late: Late) {
        loop {
            let mut state = self.state.lock();
            let Some((node, said)) = state.heard.pop_front() else {
                state.late = (state.pending > 0).then_some(late);
                return;
            };
            drop(state);
            late(node, said);
        }
    }
}
