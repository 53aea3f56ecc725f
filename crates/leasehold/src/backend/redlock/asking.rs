//! A request to one node that goes on by itself until it is answered.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::panic::{self, AssertUnwindSafe};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::task::unconstrained;
use tokio::time::Instant;

use super::super::redis::error::Failure;
use super::node::{Node, Said};
use super::poll::Votes;

/// How long answers that nobody waits for any more may take. A request that is dropped
/// unanswered makes its connection suspect.
const LATEST: Duration = Duration::from_secs(30);

type Work = Pin<Box<dyn Future<Output = Said> + Send>>;

/// One request. Whatever wakes it has it go on right there.
pub(super) struct Asking {
    node: usize,
    votes: Arc<Votes>,
    state: Mutex<State>,
}

enum State {
    Waiting(Work),
    /// It is just going on; perhaps it was woken meanwhile.
    Busy {
        woken: bool,
    },
    Over,
}

thread_local! {
    /// Those that were woken while another goes on: after it, and not inside of it, however
    /// many there are.
    static NEXT: RefCell<Option<VecDeque<Arc<Asking>>>> = const { RefCell::new(None) };
}

impl Asking {
    /// Sends it. The answer goes to these votes.
    pub(super) fn begin(node: usize, work: Work, votes: Arc<Votes>) -> Arc<Self> {
        let asking = Arc::new(Self { node, votes, state: Mutex::new(State::Waiting(work)) });
        asking.go_on();
        asking
    }

    /// Whether it was answered, or given up.
    fn is_over(&self) -> bool {
        matches!(*self.state.lock(), State::Over)
    }

    fn give_up(&self) {
        let before = {
            let mut state = self.state.lock();
            match *state {
                State::Waiting(_) => std::mem::replace(&mut *state, State::Over),
                _ => return,
            }
        };
        drop(before);
    }

    fn go_on(self: &Arc<Self>) {
        if let State::Busy { woken } = &mut *self.state.lock() {
            *woken = true;
            return;
        }
        let first = NEXT.try_with(|next| match &mut *next.borrow_mut() {
            Some(next) => {
                next.push_back(self.clone());
                false
            }
            next => {
                *next = Some(VecDeque::new());
                true
            }
        });
        // On a thread that is just ending there is no such list.
        if first == Ok(false) {
            return;
        }
        let mut asking = Some(self.clone());
        while let Some(next) = asking {
            // A panic of whoever hears the answer must not leave the others waiting.
            let _ = panic::catch_unwind(AssertUnwindSafe(|| next.step()));
            asking = NEXT.try_with(|next| Self::another(&mut next.borrow_mut())).ok().flatten();
        }
    }

    fn another(next: &mut Option<VecDeque<Arc<Self>>>) -> Option<Arc<Self>> {
        let another = next.as_mut().and_then(VecDeque::pop_front);
        if another.is_none() {
            *next = None;
        }
        another
    }

    fn step(self: &Arc<Self>) {
        let mut work = {
            let mut state = self.state.lock();
            match std::mem::replace(&mut *state, State::Busy { woken: true }) {
                State::Waiting(work) => {
                    *state = State::Busy { woken: false };
                    work
                }
                State::Busy { .. } => return,
                State::Over => {
                    *state = State::Over;
                    return;
                }
            }
        };
        let waker = Waker::from(self.clone());
        let polled = panic::catch_unwind(AssertUnwindSafe(|| {
            // The budget is that of the task which happens to be here.
            Pin::new(&mut unconstrained(&mut work)).poll(&mut Context::from_waker(&waker))
        }));
        let said = match polled {
            Ok(Poll::Ready(said)) => said,
            Ok(Poll::Pending) => return self.wait(work),
            Err(_) => Said::Failed(Failure::silent()),
        };
        *self.state.lock() = State::Over;
        drop(work);
        self.votes.hear(self.node, said);
    }

    fn wait(self: &Arc<Self>, work: Work) {
        let mut state = self.state.lock();
        let woken = matches!(*state, State::Busy { woken: true });
        *state = State::Waiting(work);
        drop(state);
        if woken {
            // Not at once: what it waits for may have to run here first.
            let again = self.clone();
            match Handle::try_current() {
                Ok(runtime) => drop(runtime.spawn(async move { again.go_on() })),
                Err(_) => self.go_on(),
            }
        }
    }
}

impl Wake for Asking {
    fn wake(self: Arc<Self>) {
        self.go_on();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.go_on();
    }
}

/// The requests to one node that nobody waits for any more.
#[derive(Default)]
pub(super) struct Unanswered(Mutex<VecDeque<(Instant, Arc<Asking>)>>);

impl Unanswered {
    /// It is given up if it is not answered in time; so are, by now, those before it.
    pub(super) fn look_after(&self, asking: Arc<Asking>) {
        let now = Instant::now();
        let mut late = Vec::new();
        let mut requests = self.0.lock();
        while let Some((until, first)) = requests.front()
            && (*until <= now || first.is_over())
        {
            late.extend(requests.pop_front());
        }
        if !asking.is_over() {
            requests.push_back((now + LATEST, asking));
        }
        drop(requests);
        for (_, asking) in late {
            asking.give_up();
        }
    }
}

impl Unanswered {
    /// All of them are given up.
    fn give_up(&self) {
        let all = std::mem::take(&mut *self.0.lock());
        all.into_iter().for_each(|(_, asking)| asking.give_up());
    }
}

/// The client is gone. What it left behind may still be answered (a release that is everywhere
/// but at one node), and does not keep a silent node's connection for ever.
pub(super) fn end_in_time(nodes: &[Arc<Node>]) {
    let Ok(runtime) = Handle::try_current() else { return };
    for node in nodes.iter().filter(|node| !node.unanswered.0.lock().is_empty()) {
        let node = node.clone();
        runtime.spawn(async move {
            tokio::time::sleep(LATEST).await;
            node.unanswered.give_up();
        });
    }
}

impl std::fmt::Debug for Unanswered {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Unanswered").field(&self.0.lock().len()).finish()
    }
}
