//! The way of renewals to the store: as many at a time as it takes, and of those that
//! wait the one first whose leases are over first.

use std::collections::BTreeMap;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock::Moment;

#[derive(Debug)]
pub(super) struct Gate(Mutex<Line>);

#[derive(Debug)]
struct Line {
    /// How many may still go; none while somebody waits.
    free: usize,
    waiting: BTreeMap<Turn, oneshot::Sender<()>>,
    arrivals: u64,
}

/// Among those that are over at the same time, the order of arrival.
type Turn = (Moment, u64);

/// The right to ask. Dropping it lets the next one ask.
#[derive(Debug)]
pub(super) struct Passage<'a> {
    gate: &'a Gate,
    /// Whether others were before it: what was known before may have changed.
    pub(super) waited: bool,
}

impl Gate {
    pub(super) fn new(width: usize) -> Self {
        Self(Mutex::new(Line { free: width, waiting: BTreeMap::new(), arrivals: 0 }))
    }

    /// Waits for a passage, for leases of which the first is over then. Dropping the
    /// future leaves the line.
    pub(super) async fn enter(&self, first_deadline: Moment) -> Passage<'_> {
        let place = self.join(first_deadline);
        let waited = place.is_some();
        if let Some(place) = place {
            place.reached().await;
        }
        Passage { gate: self, waited }
    }

    fn join(&self, first_deadline: Moment) -> Option<Place<'_>> {
        let mut line = self.0.lock();
        if line.free > 0 {
            line.free -= 1;
            return None;
        }
        line.arrivals += 1;
        let turn = (first_deadline, line.arrivals);
        let (sender, reached) = oneshot::channel();
        line.waiting.insert(turn, sender);
        Some(Place { gate: self, turn, reached })
    }

    fn hand_on(&self) {
        // Outside of the lock: a waker may look at the line again.
        while let Some(next) = self.next() {
            if next.send(()).is_ok() {
                return;
            }
        }
    }

    /// Who goes next; if nobody waits, the passage is free.
    fn next(&self) -> Option<oneshot::Sender<()>> {
        let mut line = self.0.lock();
        let next = line.waiting.pop_first();
        line.free += usize::from(next.is_none());
        next.map(|(_, next)| next)
    }
}

impl Drop for Passage<'_> {
    fn drop(&mut self) {
        self.gate.hand_on();
    }
}

/// A place in line.
struct Place<'a> {
    gate: &'a Gate,
    turn: Turn,
    reached: oneshot::Receiver<()>,
}

impl Place<'_> {
    async fn reached(mut self) {
        // Once received, the drop below finds the channel empty and hands nothing on.
        let _ = (&mut self.reached).await;
    }
}

impl Drop for Place<'_> {
    /// A turn that came just as the task gave up goes to the next one.
    fn drop(&mut self) {
        self.reached.close();
        if self.reached.try_recv().is_ok() {
            self.gate.hand_on();
        } else {
            self.gate.0.lock().waiting.remove(&self.turn);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<F: Future>(future: Pin<&mut F>) -> Option<F::Output> {
        match future.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => Some(output),
            Poll::Pending => None,
        }
    }

    #[test]
    fn lets_the_first_deadline_pass_first() {
        let gate = Gate::new(1);
        let at = Moment::from_nanos;
        let open = poll(pin!(gate.enter(at(9)))).unwrap();
        assert!(!open.waited);
        let (mut late, mut soon) = (pin!(gate.enter(at(7))), pin!(gate.enter(at(3))));
        assert!(poll(late.as_mut()).is_none() && poll(soon.as_mut()).is_none());
        drop(open);
        assert!(poll(late.as_mut()).is_none());
        let passage = poll(soon).unwrap();
        assert!(passage.waited);
        drop(passage);
        drop(poll(late).unwrap());
        assert_eq!(gate.0.lock().free, 1);
    }

    #[test]
    fn a_turn_given_to_a_task_that_gives_up_is_handed_on() {
        let gate = Gate::new(1);
        let at = Moment::from_nanos;
        let open = poll(pin!(gate.enter(at(9)))).unwrap();
        let mut quitter = Box::pin(gate.enter(at(1)));
        let mut leaver = Box::pin(gate.enter(at(2)));
        let mut last = pin!(gate.enter(at(3)));
        assert!(poll(quitter.as_mut()).is_none() && poll(leaver.as_mut()).is_none());
        assert!(poll(last.as_mut()).is_none());
        drop(leaver);
        assert_eq!(gate.0.lock().waiting.len(), 2, "nobody waits in the leaver's place");
        drop(open);
        drop(quitter);
        drop(poll(last).unwrap());
        assert_eq!(gate.0.lock().free, 1);
    }
}
