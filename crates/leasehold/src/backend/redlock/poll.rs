//! One call to all nodes at once, whose answers are taken as they come.
//!
//! Each request goes on right where it is woken, and notes its answer there: a task for each,
//! woken for each answer, would cost more than the answers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll as Progress, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::unconstrained;
use tokio::time::{Instant, Sleep, sleep_until};

use super::node::{Detached, Node, Said};
use super::{Call, Failure};

/// The answers that are still to come. Dropped, it does not take its requests back: nobody
/// hears their answers, and a node that gives none is found out later.
pub(super) struct Poll {
    inbox: Arc<Inbox>,
    requests: Vec<(Arc<Node>, Arc<Request>)>,
    until: Instant,
    alarm: Option<Pin<Box<Sleep>>>,
}

/// What the nodes have said so far.
struct Inbox {
    state: Mutex<Heard>,
    /// While more answers than this are pending, nothing is decided, and nobody woken.
    few: usize,
}

struct Heard {
    said: VecDeque<(usize, Said)>,
    pending: usize,
    waiter: Option<Waker>,
    late: Option<Late>,
}

/// What to do with answers that come when the vote is over.
pub(super) type Late = Box<dyn FnMut(usize, Said) + Send>;

impl Poll {
    /// Calls all of these nodes; answers that take longer than this do not count.
    pub(super) fn new(nodes: &[Arc<Node>], call: Call, limit: Duration) -> Self {
        let (call, count) = (Arc::new(call), nodes.len());
        let majority = count / 2 + 1;
        let said = VecDeque::with_capacity(count);
        let heard = Heard { said, pending: count, waiter: None, late: None };
        // A majority of one mind, or so many of another that there is none.
        let enough = majority.min(count - majority + 1);
        let inbox = Arc::new(Inbox { state: Mutex::new(heard), few: count - enough });
        let requests = nodes.iter().map(|node| {
            let (asked, call) = (node.clone(), call.clone());
            let work = State::Waiting(Box::pin(async move { asked.ask(&call).await }));
            let inbox = inbox.clone();
            let request = Arc::new(Request { node: node.index, inbox, state: Mutex::new(work) });
            request.go_on();
            (node.clone(), request)
        });
        let requests = requests.collect();
        Self { inbox, requests, until: Instant::now() + limit, alarm: None }
    }

    /// How many may still answer.
    pub(super) fn pending(&self) -> usize {
        let state = self.inbox.state.lock();
        state.pending + state.said.len()
    }

    /// The next answer: which node, and what it said. `None` when there is none any more, or
    /// time is up.
    pub(super) async fn next(&mut self) -> Option<(usize, Said)> {
        poll_fn(|cx| {
            let mut state = self.inbox.state.lock();
            if let Some(said) = state.said.pop_front() {
                return Progress::Ready(Some(said));
            }
            if state.pending == 0 {
                return Progress::Ready(None);
            }
            match &mut state.waiter {
                Some(waiter) => waiter.clone_from(cx.waker()),
                waiter => *waiter = Some(cx.waker().clone()),
            }
            drop(state);
            let alarm = self.alarm.get_or_insert_with(|| Box::pin(sleep_until(self.until)));
            alarm.as_mut().poll(cx).map(|()| None)
        })
        .await
    }

    /// From now on answers go there.
    pub(super) fn hand_over(self, late: Late) {
        self.inbox.state.lock().waiter = None;
        self.inbox.tell(late);
    }
}

impl Drop for Poll {
    fn drop(&mut self) {
        let pending = {
            let mut state = self.inbox.state.lock();
            state.waiter = None;
            state.pending
        };
        if pending > 0 {
            for (node, request) in self.requests.drain(..) {
                node.give_up_in_time(request);
            }
        }
    }
}

impl Inbox {
    /// A node's answer.
    fn hear(&self, node: usize, said: Said) {
        let mut state = self.state.lock();
        state.pending -= 1;
        state.said.push_back((node, said));
        let late = state.late.take();
        let waiter = if state.pending <= self.few { state.waiter.take() } else { None };
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
            let Some((node, said)) = state.said.pop_front() else {
                state.late = (state.pending > 0).then_some(late);
                return;
            };
            drop(state);
            late(node, said);
        }
    }
}

type Work = Pin<Box<dyn Future<Output = Said> + Send>>;

/// A request to one node that goes on by itself until it is answered.
struct Request {
    node: usize,
    inbox: Arc<Inbox>,
    state: Mutex<State>,
}

enum State {
    Waiting(Work),
    /// It is just going on; whether it was woken meanwhile.
    Busy(bool),
    Over,
}

thread_local! {
    /// Those that were woken while another goes on: after it, and not inside of it, however
    /// many there are.
    static NEXT: RefCell<Option<VecDeque<Arc<Request>>>> = const { RefCell::new(None) };
}

impl Request {
    fn go_on(self: &Arc<Self>) {
        if let State::Busy(woken) = &mut *self.state.lock() {
            *woken = true;
            return;
        }
        let queued = NEXT.try_with(|next| match &mut *next.borrow_mut() {
            Some(next) => {
                next.push_back(self.clone());
                true
            }
            next => {
                *next = Some(VecDeque::new());
                false
            }
        });
        // On a thread that is just ending there is no such list.
        if queued == Ok(true) {
            return;
        }
        let mut request = Some(self.clone());
        while let Some(next) = request {
            // A panic of whoever hears the answer must not leave the others waiting.
            let _ = catch_unwind(AssertUnwindSafe(|| next.step()));
            let another = NEXT.try_with(|next| {
                let mut next = next.borrow_mut();
                let another = next.as_mut().and_then(VecDeque::pop_front);
                if another.is_none() {
                    *next = None;
                }
                another
            });
            request = another.ok().flatten();
        }
    }

    fn step(self: &Arc<Self>) {
        let mut state = self.state.lock();
        let mut work = match mem::replace(&mut *state, State::Busy(false)) {
            State::Waiting(work) => work,
            State::Busy(_) => {
                *state = State::Busy(true);
                return;
            }
            State::Over => {
                *state = State::Over;
                return;
            }
        };
        drop(state);
        let waker = Waker::from(self.clone());
        let polled = catch_unwind(AssertUnwindSafe(|| {
            // The budget is that of the task which happens to be here.
            Pin::new(&mut unconstrained(&mut work)).poll(&mut Context::from_waker(&waker))
        }));
        let said = match polled {
            Ok(Progress::Ready(said)) => said,
            Ok(Progress::Pending) => {
                let before = mem::replace(&mut *self.state.lock(), State::Waiting(work));
                if let State::Busy(true) = before {
                    // Not at once: what it waits for may have to run here first.
                    let again = self.clone();
                    match Handle::try_current() {
                        Ok(runtime) => drop(runtime.spawn(async move { again.go_on() })),
                        Err(_) => self.go_on(),
                    }
                }
                return;
            }
            Err(_) => Said::Failed(Failure::silent()),
        };
        *self.state.lock() = State::Over;
        drop(work);
        self.inbox.hear(self.node, said);
    }
}

impl Detached for Request {
    fn is_over(&self) -> bool {
        matches!(*self.state.lock(), State::Over)
    }

    fn give_up(&self) {
        let mut state = self.state.lock();
        if let State::Waiting(_) = *state {
            let work = mem::replace(&mut *state, State::Over);
            drop(state);
            drop(work);
        }
    }
}

impl Wake for Request {
    fn wake(self: Arc<Self>) {
        self.go_on();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.go_on();
    }
}
