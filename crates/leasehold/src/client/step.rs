//! In step: claims and releases of one client take turns, where the store wants that.
//!
//! Left alone, the tasks of a client fall into groups, some of them asking while others give
//! back, each group a request of its own. When each kind waits for the other one's answer,
//! those who were just answered join those who wait, until all travel together.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

/// How long to wait for one's turn. What is under way may hang, and a release must not hang
/// with it.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whose turn it is.
#[derive(Debug)]
pub(crate) struct Step(Arc<Semaphore>);

/// The right to go, until dropped.
pub(super) type Turn = OwnedSemaphorePermit;

impl Default for Step {
    fn default() -> Self {
        Self(Arc::new(Semaphore::new(1)))
    }
}

impl Step {
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

    #[tokio::test(start_paused = true)]
    async fn a_turn_is_waited_for_but_not_for_ever() {
        let step = Step::default();
        let turn = step.try_take();
        assert!(turn.is_some() && step.try_take().is_none());
        assert!(step.take().await.is_none(), "what is under way hangs");
        let waiting = step.take();
        drop(turn);
        assert!(waiting.await.is_some());
    }
}
