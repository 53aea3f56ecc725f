//! The way of renewals to the store: as many at a time as it takes, and of those that
//! wait the one first whose leases are over first.
//!
//! Waiting for other renewals of ours is no sign of an unreachable store. That those get no
//! answer is, for whoever has heard nothing for as long as its own question may take.

use std::collections::BTreeMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::clock::Moment;
use crate::error::{Error, Result};

#[derive(Debug)]
pub(super) struct RenewalLimiter(Mutex<Queue>);

#[derive(Debug)]
struct Queue {
    /// How many may still go; none while somebody waits.
    free: usize,
    waiting: BTreeMap<Turn, Waiting>,
    arrivals: u64,
    /// When the store last answered.
    heard: Option<Instant>,
}

#[derive(Debug)]
struct Waiting {
    since: Instant,
    /// How long its question may take.
    limit: Duration,
    called: oneshot::Sender<Result<()>>,
}

/// Among those that are over at the same time, the order of arrival.
type Turn = (Moment, u64);

/// The right to ask. Dropping it lets the next one ask.
#[derive(Debug)]
pub(super) struct Permit<'a> {
    limiter: &'a RenewalLimiter,
    /// Whether others were before it: what was known before may have changed.
    pub(super) waited: bool,
}

impl RenewalLimiter {
    pub(super) fn new(width: usize) -> Self {
        let waiting = BTreeMap::new();
        Self(Mutex::new(Queue { free: width, waiting, arrivals: 0, heard: None }))
    }

    /// Waits for a permit, for leases of which the first is over then, and a question that
    /// may take this long. The error of another if the store is silent. Dropping the future
    /// leaves the queue.
    pub(super) async fn enter(
        &self,
        first_deadline: Moment,
        limit: Duration,
    ) -> Result<Permit<'_>> {
        let place = self.join(first_deadline, limit);
        let waited = place.is_some();
        if let Some(place) = place {
            place.reached().await?;
        }
        Ok(Permit { limiter: self, waited })
    }

    fn join(&self, first_deadline: Moment, limit: Duration) -> Option<Place<'_>> {
        let mut queue = self.0.lock();
        if queue.free > 0 {
            queue.free -= 1;
            return None;
        }
        queue.arrivals += 1;
        let turn = (first_deadline, queue.arrivals);
        let (called, reached) = oneshot::channel();
        queue.waiting.insert(turn, Waiting { since: Instant::now(), limit, called });
        Some(Place { limiter: self, turn, reached })
    }

    /// The store answered, whatever it said.
    pub(super) fn heard(&self) {
        self.0.lock().heard = Some(Instant::now());
    }

    /// The store did not answer. So it does not answer those either who have heard nothing
    /// for as long as they would wait for their own answer.
    pub(super) fn silent(&self, error: &Error) {
        let now = Instant::now();
        let mut queue = self.0.lock();
        let heard = queue.heard;
        let silent = |waiting: &Waiting| {
            let since = heard.map_or(waiting.since, |heard| heard.max(waiting.since));
            now.saturating_duration_since(since) >= waiting.limit
        };
        let all = std::mem::take(&mut queue.waiting).into_iter();
        let (turned_away, still_waiting) = all.partition(|(_, waiting)| silent(waiting));
        queue.waiting = still_waiting;
        drop(queue);
        for Waiting { called, .. } in BTreeMap::into_values(turned_away) {
            let _ = called.send(Err(error.clone()));
        }
    }

    fn hand_on(&self) {
        // Outside of the lock: a waker may look at the queue again.
        while let Some(next) = self.next() {
            if next.send(Ok(())).is_ok() {
                return;
            }
        }
    }

    /// Who goes next; if nobody waits, the permit is free.
    fn next(&self) -> Option<oneshot::Sender<Result<()>>> {
        let mut queue = self.0.lock();
        let next = queue.waiting.pop_first();
        queue.free += usize::from(next.is_none());
        next.map(|(_, next)| next.called)
    }
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.limiter.hand_on();
    }
}

/// A place in the queue.
struct Place<'a> {
    limiter: &'a RenewalLimiter,
    turn: Turn,
    reached: oneshot::Receiver<Result<()>>,
}

impl Place<'_> {
    async fn reached(mut self) -> Result<()> {
        // Once received, the drop below finds the channel empty and hands nothing on.
        (&mut self.reached).await.unwrap_or(Ok(()))
    }
}

impl Drop for Place<'_> {
    /// A turn that came just as the task gave up goes to the next one.
    fn drop(&mut self) {
        self.reached.close();
        if let Ok(called) = self.reached.try_recv() {
            // Who is turned away has nothing to hand on.
            if called.is_ok() {
                self.limiter.hand_on();
            }
        } else {
            self.limiter.0.lock().waiting.remove(&self.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;
    use crate::callers::{Callers, polls, seeds};

    const LONG: Duration = Duration::from_secs(60);

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn lets_the_first_deadline_pass_first() {
        let limiter = RenewalLimiter::new(1);
        let at = Moment::from_nanos;
        let open = poll(pin!(limiter.enter(at(9), LONG))).unwrap().unwrap();
        assert!(!open.waited);
        let (mut late, mut soon) =
            (pin!(limiter.enter(at(7), LONG)), pin!(limiter.enter(at(3), LONG)));
        assert!(poll(late.as_mut()).is_none() && poll(soon.as_mut()).is_none());
        drop(open);
        assert!(poll(late.as_mut()).is_none());
        let permit = poll(soon).unwrap().unwrap();
        assert!(permit.waited);
        drop(permit);
        drop(poll(late).unwrap().unwrap());
        assert_eq!(limiter.0.lock().free, 1);
    }

    #[test]
    fn a_turn_given_to_a_task_that_gives_up_is_handed_on() {
        let limiter = RenewalLimiter::new(1);
        let at = Moment::from_nanos;
        let open = poll(pin!(limiter.enter(at(9), LONG))).unwrap().unwrap();
        let mut quitter = Box::pin(limiter.enter(at(1), LONG));
        let mut leaver = Box::pin(limiter.enter(at(2), LONG));
        let mut last = pin!(limiter.enter(at(3), LONG));
        assert!(poll(quitter.as_mut()).is_none() && poll(leaver.as_mut()).is_none());
        assert!(poll(last.as_mut()).is_none());
        drop(leaver);
        assert_eq!(limiter.0.lock().waiting.len(), 2, "nobody waits in the leaver's place");
        drop(open);
        drop(quitter);
        drop(poll(last).unwrap().unwrap());
        assert_eq!(limiter.0.lock().free, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn who_heard_nothing_for_as_long_as_its_own_limit_is_turned_away() {
        let (limiter, at) = (RenewalLimiter::new(1), Moment::from_nanos);
        let short = LONG / 4;
        let open = limiter.enter(at(1), short).await.unwrap();
        let (mut one, mut two) =
            (pin!(limiter.enter(at(2), short)), pin!(limiter.enter(at(3), LONG)));
        assert!(poll(one.as_mut()).is_none() && poll(two.as_mut()).is_none());
        tokio::time::advance(short / 2).await;
        limiter.heard();
        tokio::time::advance(short / 2).await;
        limiter.silent(&Error::no_answer(short));
        assert!(poll(one.as_mut()).is_none(), "something was heard meanwhile");
        tokio::time::advance(short / 2).await;
        limiter.silent(&Error::no_answer(short));
        assert!(poll(one.as_mut()).unwrap().is_err());
        assert!(poll(two.as_mut()).is_none(), "it would wait longer");
        drop(open);
        drop(poll(two).unwrap().unwrap());
        assert_eq!(limiter.0.lock().free, 1);
    }

    /// Whoever is polled when, gives up or is turned away: every permit comes back.
    #[test]
    fn no_schedule_loses_a_permit() {
        for seed in seeds() {
            let width = 1 + seed as usize % 3;
            let limiter = RenewalLimiter::new(width);
            let mut callers = Callers::new(seed);
            for _ in 0..200 {
                match callers.dice.u8(..8) {
                    0 | 1 => {
                        let deadline = Moment::from_nanos(callers.dice.u64(..9));
                        let limit = if callers.dice.bool() { LONG } else { Duration::ZERO };
                        let (times, limiter) = (callers.dice.u8(..4), &limiter);
                        callers.add(async move {
                            if let Ok(_permit) = limiter.enter(deadline, limit).await {
                                polls(times).await;
                            }
                        });
                    }
                    2 => callers.drop_one(),
                    3 => limiter.silent(&Error::no_answer(LONG)),
                    _ => {
                        callers.poll_one();
                    }
                }
            }
            while callers.poll_one() {}
            assert_eq!(callers.len(), 0, "seed {seed}: renewals wait, and nobody wakes them");
            assert_eq!(limiter.0.lock().free, width, "seed {seed}: a permit is lost");
        }
    }
}
