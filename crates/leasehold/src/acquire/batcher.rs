//! The batcher: requests of one kind that are in flight together travel together (group commit
//! for locks).
//!
//! A client has two, one for claims and one for releases. The [keeper](crate::lease) batches
//! renewals by itself.
//!
//! # When a request is sent
//!
//! A store takes so many requests of each kind at once: `in_flight` of its
//! [`Limits`](crate::backend::Limits). A batcher has that many *slots*, and a request needs one:
//!
//! * **Idle**: a slot is free and nobody else is about. The request leaves at once and alone,
//!   polled by its caller, without a task or a channel.
//! * **Busy**: no slot is free. The request queues. The task that has a slot sends what has
//!   collected as soon as its present batch is answered.
//! * **In company**: a slot is free, but other tasks were here just now (the last batch had
//!   several requests, or another task sent one within the last 200 µs). Others will probably come
//!   along, so the request queues, and a task sends the queue after it has yielded to them: up to
//!   four times, while the queue grows and is shorter than the last batch. This is for stores that
//!   take one or two requests at once and so pay for each of them. (A store that answers in place
//!   is never seen "in flight" by other tasks of its thread, so nothing would ever collect.)
//!
//! No request waits for a timer. It waits for the answers to the batches before it, each of which
//! comes within the request time-out, and where kinds take turns for at most 20 ms more.
//!
//! # What travels together
//!
//! The oldest requests of the queue, but never two that name the same lock: the second goes with
//! the next batch. Three limits of the store say how many:
//!
//! * `batch` is the most requests of one batch.
//! * `in_halves`: a batch takes at most half of all requests in both batchers. Left alone, all
//!   tasks of a client come to travel together, and client and store wait for each other; two
//!   halves keep both busy.
//! * `in_step`: claims and releases take turns. Left alone, the tasks of a client fall into groups,
//!   some asking while others give back, each group with a request of its own. When each kind
//!   waits for the other one's answer, the tasks that were just answered join those that wait,
//!   until all travel together.
//!
//! If the store refuses a batch for one of its requests, each is sent again alone.
//!
//! # Callers that give up
//!
//! A queued claim is discarded when its caller is dropped; a queued release is sent all the same.
//! A request that was sent goes on when its caller is dropped or stops polling it:
//! [`DetachOnDrop`] gives it a task of its own then, at once if others collect behind it. So a slot
//! always comes back. If the store panics, its slot sends what has collected; if the runtime ends,
//! all queued requests fail.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task;
use tokio::time::timeout;

use crate::backend::{Claim, Hold, Reply};
use crate::clock::Moment;
use crate::context::Context;
use crate::detach::DetachOnDrop;
use crate::error::Result;
use crate::failpoint::Point;
use crate::name::NameSet;

use batch::{Item, Request, nobody_answers, only, send_batch};

mod batch;
#[cfg(all(test, not(shuttle)))]
mod schedules;

/// How often a request lets others come along before it leaves.
const MOST_YIELDS: usize = 4;
/// A store that takes this many requests at once, or fewer, pays for each of them.
const GAINS_FROM_BATCHES: usize = 2;
/// A caller that was here longer ago than this says nothing about now.
const RECENT: Duration = Duration::from_micros(200);
/// How long a kind waits for its turn. What is under way may hang, and a release must not hang
/// with it.
const TURN_TIMEOUT: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(crate) struct Batcher<R: Request>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R: Request> {
    context: Arc<Context>,
    traffic: Arc<Traffic>,
    queue: Mutex<Queue<R>>,
}

/// What the batchers of one client share.
#[derive(Debug)]
struct Traffic {
    /// The requests in both batchers: the same tasks go back and forth between the two.
    requests: AtomicUsize,
    /// One permit, where claims and releases take turns.
    turn: Arc<Semaphore>,
}

/// The right to send where kinds take turns, until dropped.
type Turn = OwnedSemaphorePermit;

#[derive(Debug)]
struct Queue<R: Request> {
    in_flight: usize,
    waiting: VecDeque<Item<R>>,
    callers: RecentCallers,
}

/// Whether others are likely to come along.
#[derive(Debug, Default)]
struct RecentCallers {
    /// How many travelled together last time.
    last_batch: usize,
    /// Who was here last, and when.
    last: Option<(Option<task::Id>, Moment)>,
}

/// The batchers of one client.
pub(crate) fn batchers(context: &Arc<Context>) -> (Batcher<Claim>, Batcher<Hold>) {
    let traffic = Arc::new(Traffic::new());
    (Batcher::new(context.clone(), traffic.clone()), Batcher::new(context.clone(), traffic))
}

impl<R: Request> Batcher<R> {
    fn new(context: Arc<Context>, traffic: Arc<Traffic>) -> Self {
        let callers = RecentCallers::default();
        let queue = Mutex::new(Queue { in_flight: 0, waiting: VecDeque::new(), callers });
        Self(Arc::new(Shared { context, traffic, queue }))
    }

    /// Whether all slots are back, and nobody is in line.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.0.queue.lock();
        queue.in_flight == 0 && queue.waiting.is_empty()
    }

    /// Sends one request, alone or with others.
    ///
    /// # Cancel safety
    ///
    /// Once polled it may be applied even if the future is dropped.
    pub(crate) async fn send(&self, request: R) -> Result<R::Answer> {
        // A store that always answers at once must not keep other tasks from running.
        task::consume_budget().await;
        let _present = self.0.traffic.enter();
        let answer = match self.0.clone().admit(request) {
            Admission::Collected(answer) => answer.await.ok(),
            Admission::Go(slot, request) => match slot.send_in_place(request).await {
                InPlace::Answered(answer) => return answer,
                InPlace::UnderWay(work) => work.await,
            },
        };
        answer.unwrap_or_else(|| Err(nobody_answers()))
    }
}

enum Admission<R: Request> {
    Go(Slot<R>, R),
    Collected(oneshot::Receiver<Result<R::Answer>>),
}

enum InPlace<R: Request> {
    Answered(Result<R::Answer>),
    UnderWay(DetachOnDrop<Result<R::Answer>>),
}

/// The right to have one request in flight. Dropping it gives the right back,
/// whatever happens (a store that panics, a runtime that ends).
struct Slot<R: Request> {
    batcher: Arc<Shared<R>>,
    given_back: bool,
    /// Held while a request is under way, where kinds take turns.
    turn: Option<Turn>,
}

impl<R: Request> Slot<R> {
    fn new(batcher: Arc<Shared<R>>, turn: Option<Turn>) -> Self {
        Self { batcher, given_back: false, turn }
    }

    /// Asks the store; if it does not answer at once, the request can be detached.
    async fn send_in_place(self, request: R) -> InPlace<R> {
        let backend = self.batcher.context.backend.clone();
        let mut batch = vec![request];
        let asked = poll_fn(|cx| {
            // Caught: whoever asks in place is told of a panic as those are who collected,
            // and does not end by it (a release is sent again).
            Poll::Ready(panic::catch_unwind(AssertUnwindSafe(|| {
                let mut sending = R::send(backend.clone(), std::mem::take(&mut batch));
                let answers = sending.as_mut().poll(cx);
                (sending, answers)
            })))
        });
        match asked.await {
            Err(_) => {
                self.pass_on();
                InPlace::Answered(Err(nobody_answers()))
            }
            Ok((_, Poll::Ready(answers))) => {
                self.pass_on();
                InPlace::Answered(answers.and_then(only))
            }
            Ok((sending, Poll::Pending)) => InPlace::UnderWay(self.go_on(sending)),
        }
    }

    fn go_on(self, sending: Reply<Vec<R::Answer>>) -> DetachOnDrop<Result<R::Answer>> {
        let batcher = self.batcher.clone();
        let work = batcher.context.detacher.begin(async move {
            let answers = self.batcher.context.ask(sending).await;
            self.pass_on();
            answers.and_then(only)
        });
        // Where kinds take turns, the other kind waits for it.
        if batcher.context.backend.limits().in_step || !batcher.queue.lock().waiting.is_empty() {
            work.detach();
        }
        work
    }

    /// The request has been answered: the slot goes to what collected meanwhile.
    fn pass_on(mut self) {
        self.turn = None;
        if !self.give_back_if_idle() {
            let context = self.batcher.context.clone();
            context.runtime.spawn(self.send_collected());
        }
    }

    async fn send_after_others(self) {
        self.let_others_come().await;
        self.send_collected().await;
    }

    /// Lets others come along: for as long as their number grows, and is not yet that of
    /// the last time.
    async fn let_others_come(&self) {
        let mut before = 0;
        for _ in 0..MOST_YIELDS {
            task::yield_now().await;
            let queue = self.batcher.queue.lock();
            let waiting = queue.waiting.len();
            if waiting == before || waiting >= queue.callers.last_batch {
                return;
            }
            before = waiting;
        }
    }

    async fn send_collected(mut self) {
        while !self.give_back_if_idle() {
            self.await_turn().await;
            let batch = self.batcher.next_batch();
            send_batch(&self.batcher.context, batch).await;
            self.turn = None;
            // Those who were just answered may have something to send.
            self.let_others_come().await;
        }
    }

    /// Where kinds take turns: until the other kind's request is answered, and those whom
    /// that concerned have come along.
    async fn await_turn(&mut self) {
        if !self.batcher.context.backend.limits().in_step {
            return;
        }
        let traffic = &self.batcher.traffic;
        self.turn = traffic.try_take_turn();
        if self.turn.is_none() {
            self.turn = traffic.take_turn().await;
            self.let_others_come().await;
        }
    }

    /// In one step, so that nobody collects behind a slot that is just going.
    fn give_back_if_idle(&mut self) -> bool {
        let mut queue = self.batcher.queue.lock();
        if queue.waiting.is_empty() {
            queue.in_flight -= 1;
            self.given_back = true;
        }
        self.given_back
    }
}

impl<R: Request> Drop for Slot<R> {
    /// Reached with the slot in hand only if the store panicked or the runtime ended:
    /// those who collected behind it must not be stranded.
    fn drop(&mut self) {
        if !self.given_back && !self.give_back_if_idle() {
            let relay = Relay(Some(self.batcher.clone()));
            self.batcher.context.runtime.spawn(relay.go_on());
        }
    }
}

/// A slot on its way to a new task. If there is no runtime to run that, those who
/// collected are told.
struct Relay<R: Request>(Option<Arc<Shared<R>>>);

impl<R: Request> Relay<R> {
    async fn go_on(mut self) {
        if let Some(batcher) = self.0.take() {
            Slot::new(batcher, None).send_collected().await;
        }
    }
}

impl<R: Request> Drop for Relay<R> {
    fn drop(&mut self) {
        if let Some(batcher) = self.0.take() {
            let mut queue = batcher.queue.lock();
            queue.in_flight -= 1;
            queue.waiting.clear();
        }
    }
}

impl<R: Request> Shared<R> {
    fn admit(self: Arc<Self>, request: R) -> Admission<R> {
        let limits = self.context.backend.limits();
        let in_flight = limits.in_flight.max(1);
        // Where many requests may be under way at once, a batch gains little.
        let gains = in_flight <= GAINS_FROM_BATCHES;
        let now = if gains { self.context.clock.now() } else { Moment::NEVER };
        let mut queue = self.queue.lock();
        let idle = queue.in_flight < in_flight;
        queue.in_flight += usize::from(idle);
        let alone = idle && !(gains && queue.callers.not_alone(now));
        let turn = (alone && limits.in_step).then(|| self.traffic.try_take_turn()).flatten();
        if alone && limits.in_step == turn.is_some() {
            drop(queue);
            return Admission::Go(Slot::new(self, turn), request);
        }
        let (reply, answer) = oneshot::channel();
        queue.waiting.push_back(Item { request, reply });
        drop(queue);
        if idle {
            let context = self.context.clone();
            let slot = Slot::new(self, None);
            context.runtime.spawn(slot.send_after_others());
        } else {
            // It waits for what is under way, whose callers may not be polling.
            self.context.detacher.detach_all();
        }
        Admission::Collected(answer)
    }

    /// The most items of one request.
    fn most_at_once(&self) -> usize {
        let limits = self.context.backend.limits();
        let share = if limits.in_halves { self.traffic.half() } else { usize::MAX };
        limits.batch.clamp(1, share)
    }

    fn next_batch(&self) -> Vec<Item<R>> {
        let limit = self.most_at_once();
        let mut queue = self.queue.lock();
        let most = queue.waiting.len().min(limit);
        let mut batch = Vec::with_capacity(most);
        let mut names = NameSet::with_capacity_and_hasher(most, Default::default());
        let mut later = VecDeque::new();
        while batch.len() < limit
            && let Some(item) = queue.waiting.pop_front()
        {
            if R::GOES_WITH_CALLER && item.reply.is_closed() {
                continue;
            }
            let split = !self.context.failpoints.skips(Point::SplitSameName);
            if split && !names.insert(item.request.name().clone()) {
                later.push_back(item);
            } else {
                batch.push(item);
            }
        }
        while let Some(item) = later.pop_back() {
            queue.waiting.push_front(item);
        }
        queue.callers.last_batch = batch.len();
        batch
    }
}

impl RecentCallers {
    /// Notes the present task; whether it is not alone.
    fn not_alone(&mut self, now: Moment) -> bool {
        let here = task::try_id();
        let last = self.last.replace((here, now));
        let other = last.is_some_and(|(who, at)| who != here && at.until(now) < RECENT);
        other || self.last_batch > 1
    }
}

impl Traffic {
    fn new() -> Self {
        Self { requests: AtomicUsize::new(0), turn: Arc::new(Semaphore::new(1)) }
    }

    /// Counts a request, until dropped.
    fn enter(&self) -> Entered<'_> {
        self.requests.fetch_add(1, Ordering::Relaxed);
        Entered(self)
    }

    /// Half of the requests; one, if there is only that.
    fn half(&self) -> usize {
        self.requests.load(Ordering::Relaxed).div_ceil(2).max(1)
    }

    /// The turn, if it is nobody's just now.
    fn try_take_turn(&self) -> Option<Turn> {
        self.turn.clone().try_acquire_owned().ok()
    }

    /// The turn, as soon as it is free; `None` if that takes too long.
    async fn take_turn(&self) -> Option<Turn> {
        timeout(TURN_TIMEOUT, self.turn.clone().acquire_owned()).await.ok()?.ok()
    }
}

struct Entered<'a>(&'a Traffic);

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_those_who_are_here() {
        let traffic = Traffic::new();
        assert_eq!(traffic.half(), 1);
        let mut all: Vec<_> = (0..5).map(|_| traffic.enter()).collect();
        assert_eq!(traffic.half(), 3);
        all.truncate(2);
        assert_eq!(traffic.half(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_but_not_for_ever() {
        let traffic = Traffic::new();
        let turn = traffic.try_take_turn();
        assert!(turn.is_some() && traffic.try_take_turn().is_none());
        assert!(traffic.take_turn().await.is_none(), "what is under way hangs");
        let waiting = traffic.take_turn();
        drop(turn);
        assert!(waiting.await.is_some());
    }
}
