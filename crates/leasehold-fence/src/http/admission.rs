//! Who is let through: the rule, per lock, in memory, with durable marks behind it.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::header::Presented;
use super::marks::{Marks, MarksError};
use crate::StaleToken;
use crate::name::Name;
use crate::rejection::rejected;
use crate::token::Token;

/// So that requests of different locks do not meet.
const SHARDS: usize = 16;
/// Locks of a shard in memory before idle ones are forgotten there. Their marks stay.
const MOST: usize = 4_096;

/// Why a request is not let through.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A newer lease has been here.
    #[error(transparent)]
    Stale(#[from] StaleToken),
    /// The mark could not be kept.
    #[error(transparent)]
    Marks(#[from] MarksError),
    /// Older requests of this lock are inside and do not end.
    #[error("requests of an older holder are still being answered; try again")]
    Busy,
}

/// Lets requests through, or not.
pub(super) struct Admission {
    marks: Arc<dyn Marks>,
    hasher: RandomState,
    shards: [Mutex<HashMap<Name, Arc<Lock>>>; SHARDS],
}

impl Admission {
    pub(super) fn new(marks: Arc<dyn Marks>) -> Self {
        Self { marks, hasher: RandomState::new(), shards: Default::default() }
    }

    /// Lets a request in; until the pass is dropped it is inside. Waits for older ones at
    /// most for `drain`.
    ///
    /// # Cancel safety
    ///
    /// Dropped, nobody is inside; the mark may have been raised.
    pub(super) async fn admit(
        &self,
        presented: &Presented,
        drain: Duration,
    ) -> Result<Pass, Refusal> {
        let lock = self.lock(&presented.lock);
        let token = presented.token;
        if let Some(decided) = lock.enter(token) {
            return decided;
        }
        let deadline = tokio::time::Instant::now() + drain;
        if lock.is_news(token) {
            // Durable before anybody with this token goes on.
            let highest = self.marks.raise(&presented.lock, token).await?;
            lock.raise(highest);
        }
        loop {
            let changed = lock.changed.notified();
            let mut changed = std::pin::pin!(changed);
            // Registered before we look, or the last one out would not be noticed.
            changed.as_mut().enable();
            if let Some(decided) = lock.enter(token) {
                return decided;
            }
            tokio::time::timeout_at(deadline, changed).await.map_err(|_| Refusal::Busy)?;
        }
    }

    fn lock(&self, name: &Name) -> Arc<Lock> {
        let mut shard = self.shards[self.hasher.hash_one(name) as usize % SHARDS].lock();
        if let Some(lock) = shard.get(name) {
            return lock.clone();
        }
        if shard.len() >= MOST {
            // Who is inside or on the way in has a reference: nobody can have one of these.
            shard.retain(|_, lock| Arc::strong_count(lock) > 1);
        }
        let lock =
            Arc::new(Lock { name: name.clone(), state: Mutex::default(), changed: Notify::new() });
        shard.insert(name.clone(), lock.clone());
        lock
    }
}

struct Lock {
    name: Name,
    state: Mutex<State>,
    changed: Notify,
}

#[derive(Default)]
struct State {
    /// The highest durable token that we know of.
    seen: Option<Token>,
    /// Requests with that token that are inside.
    inside: usize,
    /// Requests with lower tokens that are still inside.
    older: usize,
    /// Of those that are inside with that token.
    superseded: Arc<Superseded>,
}

/// Whether a newer request has come. The flag is for those who look on every request: a token
/// has a mutex, which they would all meet at.
#[derive(Default)]
pub(super) struct Superseded {
    flag: AtomicBool,
    token: CancellationToken,
}

impl Superseded {
    pub(super) fn already(&self) -> bool {
        self.flag.load(Ordering::Acquire)
    }

    pub(super) fn token(&self) -> &CancellationToken {
        &self.token
    }

    fn cancel(&self) {
        self.flag.store(true, Ordering::Release);
        self.token.cancel();
    }
}

impl Lock {
    fn is_news(&self, token: Token) -> bool {
        self.state.lock().seen.is_none_or(|seen| seen < token)
    }

    /// Goes in, or is refused; `None` if that is not decided yet.
    fn enter(self: &Arc<Self>, token: Token) -> Option<Result<Pass, Refusal>> {
        let mut state = self.state.lock();
        let seen = state.seen.filter(|seen| *seen >= token)?;
        if seen > token {
            drop(state);
            let stale = StaleToken { given: token, seen };
            return Some(Err(rejected("http", self.name.as_str(), stale).into()));
        }
        if state.older > 0 {
            return None;
        }
        state.inside += 1;
        let superseded = state.superseded.clone();
        Some(Ok(Pass { lock: self.clone(), token, superseded }))
    }

    fn raise(&self, highest: Token) {
        let mut state = self.state.lock();
        if state.seen.is_some_and(|seen| seen >= highest) {
            return;
        }
        state.seen = Some(highest);
        state.older += std::mem::take(&mut state.inside);
        let superseded = std::mem::take(&mut state.superseded);
        drop(state);
        superseded.cancel();
        self.changed.notify_waiters();
    }

    fn leave(&self, token: Token) {
        let mut state = self.state.lock();
        if state.seen == Some(token) {
            state.inside -= 1;
            return;
        }
        state.older -= 1;
        if state.older == 0 {
            drop(state);
            self.changed.notify_waiters();
        }
    }
}

/// A request that was let through. It is inside until this is dropped, which a newer one
/// waits for. A service that answers later than its future ends may keep it: it is in the
/// request's extensions, as an `Arc<Pass>`.
pub struct Pass {
    lock: Arc<Lock>,
    token: Token,
    superseded: Arc<Superseded>,
}

impl Pass {
    /// The token it was let through with.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Cancelled when a newer request of the same lock has come.
    pub fn superseded(&self) -> &CancellationToken {
        self.superseded.token()
    }

    pub(super) fn mark(&self) -> Arc<Superseded> {
        self.superseded.clone()
    }

    /// The rejection that a request gets which was cut off.
    pub(super) fn stale(&self) -> StaleToken {
        let seen = self.lock.state.lock().seen.unwrap_or(self.token);
        rejected("http", self.lock.name.as_str(), StaleToken { given: self.token, seen })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        self.lock.leave(self.token);
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pass").field("lock", &self.lock.name).field("token", &self.token).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::super::marks::MemoryMarks;
    use super::*;

    fn presented(token: u64) -> Presented {
        Presented { lock: Name::new("jobs").unwrap(), token: Token::new(token) }
    }

    const DRAIN: Duration = Duration::from_secs(10);

    fn admission() -> Admission {
        Admission::new(Arc::new(MemoryMarks::default()))
    }

    #[tokio::test(start_paused = true)]
    async fn a_newer_request_waits_for_older_ones_and_shuts_them_out_at_once() {
        let admission = admission();
        let (first, second) = (
            admission.admit(&presented(5), DRAIN).await.unwrap(),
            admission.admit(&presented(5), DRAIN).await.unwrap(),
        );
        let newer = presented(6);
        let mut waiting = std::pin::pin!(admission.admit(&newer, DRAIN));
        assert!(futures_poll(waiting.as_mut()).await.is_none(), "it waits");
        assert!(first.superseded().is_cancelled());
        let late = admission.admit(&presented(5), DRAIN).await.unwrap_err();
        assert!(matches!(late, Refusal::Stale(_)), "{late}");
        drop(first);
        assert!(futures_poll(waiting.as_mut()).await.is_none(), "one is still inside");
        drop(second);
        assert_eq!(waiting.await.unwrap().token(), Token::new(6));
    }

    #[tokio::test(start_paused = true)]
    async fn older_ones_that_never_end_keep_the_newer_one_out() {
        let admission = admission();
        let stuck = admission.admit(&presented(5), DRAIN).await.unwrap();
        let refused = admission.admit(&presented(6), DRAIN).await.unwrap_err();
        assert!(matches!(refused, Refusal::Busy), "{refused}");
        assert!(matches!(admission.admit(&presented(5), DRAIN).await, Err(Refusal::Stale(_))));
        drop(stuck);
        assert_eq!(admission.admit(&presented(6), DRAIN).await.unwrap().token(), Token::new(6));
    }

    #[tokio::test]
    async fn forgetting_idle_locks_keeps_those_that_are_in_use() {
        let admission = admission();
        let kept = admission.admit(&presented(5), DRAIN).await.unwrap();
        for number in 0..SHARDS * MOST * 2 {
            let lock = Name::new(format!("lock {number}")).unwrap();
            admission.admit(&Presented { lock, token: Token::new(1) }, DRAIN).await.unwrap();
        }
        let known: usize = admission.shards.iter().map(|shard| shard.lock().len()).sum();
        assert!(known <= SHARDS * MOST, "{known}");
        assert!(matches!(admission.admit(&presented(4), DRAIN).await, Err(Refusal::Stale(_))));
        assert_eq!(Arc::strong_count(&kept.lock), 2, "the same one");
    }

    /// Polls once.
    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match future.as_mut().poll(cx) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }
}
