//! How events reach their readers: a queue for each of them, which the reader empties as
//! a whole. So an event costs whoever announces it little more than a place in a queue.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Poll, Waker};

use parking_lot::Mutex;
use slab::Slab;
use tokio::task;

use super::Event;

/// How many events may wait for a slow reader before it misses the oldest.
const BACKLOG: usize = 1024;

/// Where events are announced. Announcing to nobody costs next to nothing.
#[derive(Debug, Default)]
pub(crate) struct Announcer(Arc<Desk>);

#[derive(Debug, Default)]
struct Desk {
    /// How many readers there are.
    readers: AtomicUsize,
    /// Under one lock, so that all of them read the same order.
    queues: Mutex<Queues>,
}

#[derive(Debug, Default)]
struct Queues {
    all: Slab<Queue>,
    /// Nobody announces any more.
    closed: bool,
}

/// What one reader has not taken yet.
#[derive(Debug, Default)]
struct Queue {
    events: VecDeque<Event>,
    missed: u64,
    /// The reader, if it waits.
    sleeper: Option<Waker>,
}

impl Announcer {
    pub(crate) fn announce(&self, event: impl FnOnce() -> Event) {
        if self.0.readers.load(Ordering::SeqCst) == 0 {
            return;
        }
        let event = event();
        let mut sleepers = Vec::new();
        // Outside of the lock: what they drop may be large.
        let mut too_old = Vec::new();
        let mut queues = self.0.queues.lock();
        let mut left = queues.all.len();
        let mut event = Some(event);
        for (_, queue) in &mut queues.all {
            left -= 1;
            // The last reader gets the event itself.
            let Some(event) = (if left == 0 { event.take() } else { event.clone() }) else { break };
            if queue.events.len() == BACKLOG {
                too_old.extend(queue.events.pop_front());
                queue.missed += 1;
            }
            queue.events.push_back(event);
            sleepers.extend(queue.sleeper.take());
        }
        drop(queues);
        // Outside of the lock too: a waker may come here again.
        sleepers.into_iter().for_each(Waker::wake);
    }

    pub(crate) fn subscribe(&self) -> Events {
        let desk = self.0.clone();
        let place = desk.queues.lock().all.insert(Queue::default());
        desk.readers.fetch_add(1, Ordering::SeqCst);
        Events { desk, place, taken: VecDeque::new(), missed: 0, rested: true }
    }
}

impl Drop for Announcer {
    fn drop(&mut self) {
        let mut queues = self.0.queues.lock();
        queues.closed = true;
        let sleepers: Vec<Waker> =
            queues.all.iter_mut().filter_map(|(_, queue)| queue.sleeper.take()).collect();
        drop(queues);
        sleepers.into_iter().for_each(Waker::wake);
    }
}

/// A reader of a client's events, from the moment it was made.
#[derive(Debug)]
pub struct Events {
    desk: Arc<Desk>,
    place: usize,
    /// Taken from the queue, and not yet read.
    taken: VecDeque<Event>,
    missed: u64,
    /// Whether others had their turn since something was taken.
    rested: bool,
}

impl Events {
    /// The next event; `None` once the client is gone.
    ///
    /// A reader that falls more than a thousand events behind misses the oldest;
    /// [`Events::missed`] counts them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no event.
    pub async fn next(&mut self) -> Option<Event> {
        // Events may come without end, and other tasks want to run.
        task::consume_budget().await;
        loop {
            if let Some(event) = self.taken.pop_front() {
                return Some(event);
            }
            if let Some(more) = self.take(None) {
                return more.then(|| self.taken.pop_front()).flatten();
            }
            if mem::replace(&mut self.rested, true) {
                break;
            }
            // Where there was one there will be others: let them collect, or each of them
            // would have to wake this task.
            task::yield_now().await;
        }
        let more = poll_fn(|cx| self.take(Some(cx.waker())).map_or(Poll::Pending, Poll::Ready));
        more.await.then(|| self.taken.pop_front()).flatten()
    }

    /// Takes what is there: whether there is more, or `None` if that is not known yet. Then
    /// the sleeper is woken once it is.
    fn take(&mut self, sleeper: Option<&Waker>) -> Option<bool> {
        let mut queues = self.desk.queues.lock();
        let closed = queues.closed;
        let queue = &mut queues.all[self.place];
        self.missed += mem::take(&mut queue.missed);
        if queue.events.is_empty() {
            queue.sleeper = sleeper.cloned();
            return closed.then_some(false);
        }
        queue.sleeper = None;
        // What is given in exchange is empty, and has room already.
        mem::swap(&mut self.taken, &mut queue.events);
        self.rested = false;
        Some(true)
    }

    /// How many events this reader missed by being slow.
    pub fn missed(&self) -> u64 {
        self.missed
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.desk.readers.fetch_sub(1, Ordering::SeqCst);
        // Dropped outside of the lock.
        let _queue = self.desk.queues.lock().all.try_remove(self.place);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::task::{Context, Wake};
    use std::time::Duration;

    use super::*;
    use crate::clock::Moment;
    use crate::event::EventKind;
    use crate::name::Name;

    fn numbered(number: u64) -> Event {
        let (at, name) = (Moment::from_nanos(number), Name::new("x").unwrap());
        Event { at, name, owner: None, kind: EventKind::Asked }
    }

    async fn numbers(events: &mut Events, count: usize) -> Vec<u64> {
        let mut numbers = Vec::new();
        for _ in 0..count {
            numbers.push(events.next().await.unwrap().at.as_nanos());
        }
        numbers
    }

    #[tokio::test]
    async fn all_readers_read_all_in_order_and_then_the_end() {
        let announcer = Announcer::default();
        announcer.announce(|| unreachable!("nobody reads"));
        let (mut one, mut two) = (announcer.subscribe(), announcer.subscribe());
        (0..5).for_each(|number| announcer.announce(|| numbered(number)));
        assert_eq!(numbers(&mut one, 5).await, [0, 1, 2, 3, 4]);
        announcer.announce(|| numbered(5));
        drop(announcer);
        assert_eq!(numbers(&mut one, 1).await, [5]);
        assert_eq!(numbers(&mut two, 6).await, [0, 1, 2, 3, 4, 5]);
        assert!(one.next().await.is_none() && two.next().await.is_none());
        assert_eq!((one.missed(), two.missed()), (0, 0));
    }

    #[tokio::test]
    async fn a_slow_reader_misses_the_oldest_and_is_told_how_many() {
        let announcer = Announcer::default();
        let mut events = announcer.subscribe();
        let all = BACKLOG as u64 + 7;
        (0..all).for_each(|number| announcer.announce(|| numbered(number)));
        assert_eq!(numbers(&mut events, BACKLOG).await, (7..all).collect::<Vec<_>>());
        assert_eq!(events.missed(), 7);
    }

    #[tokio::test]
    async fn a_reader_that_waits_is_woken_by_an_event_and_by_the_end() {
        let announcer = Announcer::default();
        let mut events = announcer.subscribe();
        let reading = tokio::spawn(async move {
            let first = events.next().await.map(|event| event.at);
            (first, events.next().await.is_none())
        });
        tokio::time::sleep(Duration::from_millis(5)).await;
        announcer.announce(|| numbered(1));
        tokio::time::sleep(Duration::from_millis(5)).await;
        drop(announcer);
        assert_eq!(reading.await.unwrap(), (Some(Moment::from_nanos(1)), true));
    }

    #[tokio::test]
    async fn a_reader_that_left_is_nobody() {
        let announcer = Announcer::default();
        let (left, mut events) = (announcer.subscribe(), announcer.subscribe());
        drop(left);
        announcer.announce(|| numbered(1));
        assert_eq!(numbers(&mut events, 1).await, [1]);
        drop(events);
        announcer.announce(|| unreachable!("nobody reads"));
    }

    #[test]
    fn readers_are_woken_outside_the_lock() {
        struct Looks(Arc<Desk>, AtomicBool);
        impl Wake for Looks {
            fn wake(self: Arc<Self>) {
                self.1.store(self.0.queues.try_lock().is_some(), Ordering::SeqCst);
            }
        }
        let announcer = Announcer::default();
        let mut events = announcer.subscribe();
        let looks = Arc::new(Looks(announcer.0.clone(), AtomicBool::new(false)));
        let waker = Waker::from(looks.clone());
        let mut next = std::pin::pin!(events.next());
        assert!(next.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        announcer.announce(|| numbered(1));
        assert!(looks.1.load(Ordering::SeqCst), "woken under the lock");
        assert!(next.poll(&mut Context::from_waker(&waker)).is_ready());
    }
}
