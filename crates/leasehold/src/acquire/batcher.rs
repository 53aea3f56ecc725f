//! The batcher: requests of one kind that are in flight together travel together (group commit
//! for locks). A client has one for claims and one for releases.
//!
//! Idle, a request leaves at once. While as many are in flight as the store takes, newcomers
//! collect and travel together afterwards. When they wait for each other, and how many go at
//! once, is the [`policy`]. A request that is under way does not depend on its caller for long: a
//! store that answers at once is asked in place, any other one by [`DetachOnDrop`].
//!
//! A store that answers in place is never seen "in flight" by other tasks of its thread. So where
//! other tasks were here just now, a request lets them come along first.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::Poll;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::task;

use crate::backend::{Claim, Hold, Reply};
use crate::clock::Moment;
use crate::context::{Context, is_about_one_of_them};
use crate::detach::DetachOnDrop;
use crate::error::{Error, ErrorKind, Result};
use crate::failpoint::Point;
use crate::name::NameSet;

use policy::{Alternation, RecentCallers, RequestCount, Turn};
use request::Request;

mod policy;
mod request;
#[cfg(all(test, not(shuttle)))]
mod schedules;

/// How often a request lets others come along before it leaves.
const MOST_YIELDS: usize = 4;
/// A store that takes this many requests at once, or fewer, pays for each of them.
const GAINS_FROM_BATCHES: usize = 2;

#[derive(Debug)]
pub(crate) struct Batcher<R: Request>(Arc<Shared<R>>);

#[derive(Debug)]
struct Shared<R: Request> {
    context: Arc<Context>,
    traffic: Arc<Traffic>,
    queue: Mutex<Queue<R>>,
}

/// What the batchers of one client share.
#[derive(Debug, Default)]
struct Traffic {
    alternation: Alternation,
    requests: RequestCount,
}

#[derive(Debug)]
struct Queue<R: Request> {
    in_flight: usize,
    waiting: VecDeque<Item<R>>,
    callers: RecentCallers,
}

#[derive(Debug)]
struct Item<R: Request> {
    request: R,
    reply: oneshot::Sender<Result<R::Answer>>,
}

/// The batchers of one client.
pub(crate) fn batchers(context: &Arc<Context>) -> (Batcher<Claim>, Batcher<Hold>) {
    let traffic = Arc::<Traffic>::default();
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
        let _present = self.0.traffic.requests.enter();
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
            self.batcher.send_batch(batch).await;
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
        let alternation = &self.batcher.traffic.alternation;
        self.turn = alternation.try_take();
        if self.turn.is_none() {
            self.turn = alternation.take().await;
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
        let turn = (alone && limits.in_step).then(|| self.traffic.alternation.try_take()).flatten();
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
        let share = if limits.in_halves { self.traffic.requests.half() } else { usize::MAX };
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

    /// One bad item failed them all. Each alone, and not one after the other: the last
    /// would wait for the time-outs of all before it.
    async fn send_one_by_one(&self, batch: Vec<Item<R>>) {
        let mut sending = task::JoinSet::new();
        for Item { request, reply } in batch {
            let context = self.context.clone();
            let alone = R::send(context.backend.clone(), vec![request]);
            sending.spawn(async move {
                let answers = context.ask(alone).await;
                let _ = reply.send(answers.and_then(only));
            });
        }
        while sending.join_next().await.is_some() {}
    }

    async fn send_batch(&self, batch: Vec<Item<R>>) {
        if batch.is_empty() {
            return; // All their callers gave up.
        }
        let requests = batch.iter().map(|item| item.request.clone()).collect();
        let sending = R::send(self.context.backend.clone(), requests);
        match self.context.ask(sending).await {
            Ok(answers) if answers.len() == batch.len() => {
                for (item, answer) in batch.into_iter().zip(answers) {
                    let _ = item.reply.send(Ok(answer));
                }
            }
            Ok(_) => {
                for item in batch {
                    let _ = item.reply.send(Err(wrong_count()));
                }
            }
            Err(error) if batch.len() > 1 && is_about_one_of_them(&error) => {
                self.send_one_by_one(batch).await;
            }
            Err(error) => {
                for item in batch {
                    let _ = item.reply.send(Err(error.clone()));
                }
            }
        }
    }
}

fn only<T>(mut answers: Vec<T>) -> Result<T> {
    match (answers.pop(), answers.is_empty()) {
        (Some(answer), true) => Ok(answer),
        _ => Err(wrong_count()),
    }
}

fn wrong_count() -> Error {
    let message = "the store did not answer each request once; please report this";
    Error::new(ErrorKind::Internal, message).outcome_unknown()
}

fn nobody_answers() -> Error {
    let message = "the request was dropped: the store's code panicked, or the runtime that this \
                   client was connected on has ended";
    Error::new(ErrorKind::Internal, message).outcome_unknown()
}
