//! The batch policy: when requests wait for each other, and how many travel together.
//!
//! * [`RecentCallers`]: whether others are likely to come along just now
//! * [`RequestCount`]: how many requests of the client are in its batchers
//! * [`Alternation`]: claims and releases of one client take turns, where the store wants that
//!
//! Left alone, the tasks of a client fall into groups, some of them asking while others give
//! back, each group a request of its own. When each kind waits for the other one's answer,
//! those who were just answered join those who wait, until all travel together.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task;
use tokio::time::timeout;

use crate::clock::Moment;

/// Whether others are likely to come along.
#[derive(Debug, Default)]
pub(super) struct RecentCallers {
    /// How many travelled together last time.
    pub(super) last_batch: usize,
    /// Who was here last, and when.
    last: Option<(Option<task::Id>, Moment)>,
}

impl RecentCallers {
    /// What happened longer ago says nothing about now.
    const RECENT: Duration = Duration::from_micros(200);

    /// Notes the present task; whether it is not alone.
    pub(super) fn not_alone(&mut self, now: Moment) -> bool {
        let here = task::try_id();
        let last = self.last.replace((here, now));
        let other = last.is_some_and(|(who, at)| who != here && at.until(now) < Self::RECENT);
        other || self.last_batch > 1
    }
}

/// How many requests of a client are in its batchers just now, claims and releases together: the
/// same tasks go back and forth between the two.
#[derive(Debug, Default)]
pub(super) struct RequestCount(AtomicUsize);

/// One of them, until dropped.
pub(super) struct Entered<'a>(&'a RequestCount);

impl RequestCount {
    pub(super) fn enter(&self) -> Entered<'_> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Entered(self)
    }

    /// Half of them; one, if there is only that.
    pub(super) fn half(&self) -> usize {
        self.0.load(Ordering::Relaxed).div_ceil(2).max(1)
    }
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// How long to wait for one's turn. What is under way may hang, and a release must not hang
/// with it.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whose turn it is.
#[derive(Debug)]
pub(super) struct Alternation(Arc<Semaphore>);

/// The right to go, until dropped.
pub(super) type Turn = OwnedSemaphorePermit;

impl Default for Alternation {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Alternation {
    /// The turn, if it is nobody's just now.
    pub(super) fn try_take(&self) -> Option<Turn> {
        self.0.clone().try_acquire_owned().ok()
    }

    /// The turn, as soon as it is free; `None` if that takes too long.
    pub(super) async fn take(&self) -> Option<Turn> {
        timeout(PATIENCE, self.0.clone().acquire_owned()).await.ok()?.ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_those_who_are_here() {
        let count = RequestCount::default();
        assert_eq!(count.half(), 1);
        let mut all: Vec<_> = (0..5).map(|_| count.enter()).collect();
        assert_eq!(count.half(), 3);
        all.truncate(2);
        assert_eq!(count.half(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_but_not_for_ever() {
        let alternation = Alternation::default();
        let turn = alternation.try_take();
        assert!(turn.is_some() && alternation.try_take().is_none());
        assert!(alternation.take().await.is_none(), "what is under way hangs");
        let waiting = alternation.take();
        drop(turn);
        assert!(waiting.await.is_some());
    }
}
