//! Waiting: a session of its own blocks in the server's queue, first come, first served. The
//! lock it gets stays in that session.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::super::url::Settings;
use super::key::Key;
use super::ledger::{CONTENDED_FOR, Waiting};
use super::lifeline::Lifeline;
use super::{SessionStore, hold, statements};
use crate::backend::{Claim, Turn};
use crate::detach::DetachOnDrop;
use crate::error::Result;
use crate::owner::Owner;

/// How long a cancelled statement may take to end before it is cancelled again: the first
/// cancellation may have come before the statement.
const LAST_WORD: Duration = Duration::from_millis(200);
const CANCELLATIONS: usize = 10;

/// Takes a place in the queue.
pub(super) fn enqueue(store: &Arc<SessionStore>, key: Key, claim: Claim) {
    let (over, cancel) = (CancellationToken::new(), store.closing.child_token());
    let (owner, left) = (claim.owner, store.clock.now());
    let guard = over.clone().drop_guard();
    let blocking = block(Arc::downgrade(store), key, claim, cancel.clone(), guard);
    let request = Some(store.detacher.begin(blocking));
    store.ledger.lock().waiting.insert(owner, Waiting { request, over, cancel, left });
    store.work.notify_one();
}

pub(super) async fn wait(store: Arc<SessionStore>, claim: Claim) -> Result<Turn> {
    let owner = claim.owner;
    let request = store.ledger.lock().waiting.get_mut(&owner).and_then(|it| it.request.take());
    let mut attended = Attended { store: &store, owner, request };
    if let Some(request) = &mut attended.request {
        request.await;
        attended.request = None;
        store.ledger.lock().waiting.remove(&owner);
    }
    let grant = store.ledger.lock().collect(owner);
    Ok(grant.map_or(Turn::TryAgain, Turn::Granted))
}

/// A wait whose end somebody waits for. If they give up, the wait goes on.
struct Attended<'a> {
    store: &'a SessionStore,
    owner: Owner,
    request: Option<DetachOnDrop<Option<()>>>,
}

impl Drop for Attended<'_> {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        request.detach();
        let left = self.store.clock.now();
        if let Some(waiting) = self.store.ledger.lock().waiting.get_mut(&self.owner) {
            (waiting.request, waiting.left) = (Some(request), left);
        }
    }
}

/// Leaves the queue, or gives back the grant that just came.
pub(super) async fn leave(store: Arc<SessionStore>, claim: Claim) -> Result<()> {
    stop_waiting(&store, claim.owner).await;
    let held = store.ledger.lock().remove(claim.owner);
    match held {
        Some(held) => hold::give_back(&store, vec![held]).await.map(drop),
        // A wait also ends when the server goes away. Then the server knows nothing of this, and
        // that another held the lock before is no answer any more.
        None => store.observer.session().await?.rows(&statements::PING, &[]).await.map(drop),
    }
}

/// Ends a wait, and returns when the server knows of it. What was granted stays granted.
pub(super) async fn stop_waiting(store: &SessionStore, owner: Owner) {
    let waiting = store.ledger.lock().waiting.remove(&owner);
    if let Some(waiting) = waiting {
        // Somebody may have its request, and not poll it.
        store.detacher.detach_all();
        waiting.end().await;
    }
}

/// Blocks until the lock is got, or the wait is cancelled; `None` if there is no grant. Holds the
/// store only now and then: a wait must not keep alive what nobody uses any more.
async fn block(
    store: Weak<SessionStore>,
    key: Key,
    claim: Claim,
    cancel: CancellationToken,
    _over: DropGuard,
) -> Option<()> {
    let (idle, clock, settings) = {
        let store = store.upgrade()?;
        let idle = {
            let mut ledger = store.ledger.lock();
            ledger.idle.retain(|idle| idle.is_open());
            ledger.idle.pop()
        };
        (idle, store.clock.clone(), store.settings.clone())
    };
    let lifeline = match idle {
        Some(lifeline) => lifeline,
        None => cancel.run_until_cancelled(Box::pin(new_lifeline(&store))).await??,
    };
    let mut used = CloseOnDrop(Some(lifeline.clone()));
    if !lifeline.carries(claim.ttl) {
        cancel.run_until_cancelled(Box::pin(lifeline.carry(claim.ttl))).await?.ok()?;
    }
    let mut at = clock.now();
    let mut blocking = std::pin::pin!(lifeline.lock(key));
    let asked = tokio::select! {
        biased;
        asked = &mut blocking => asked,
        () = cancel.cancelled() => {
            Box::pin(call_off(&lifeline, key, &settings, blocking)).await;
            return None;
        }
    };
    let token = match asked {
        Ok(token) => token,
        Err(error) => {
            tracing::debug!(%error, "a wait for a lock ended");
            // Advisory locks survive a statement that failed after it got them; the session
            // is not used again.
            unlock_soon(&lifeline, key).await;
            return None;
        }
    };
    // After a long wait, the session proves that it is still there and still has it
    // (etcd#11456: granted after its own session had expired).
    if at.until(clock.now()) > claim.ttl / 4 {
        at = clock.now();
        let proved = Box::pin(lifeline.prove(&[key])).await.ok()?;
        if proved != [true] {
            return None;
        }
    }
    let store = store.upgrade()?;
    let now = (store.clock.wall(), store.clock.now());
    {
        let mut ledger = store.ledger.lock();
        // Who noticed its end may have looked into the ledger before.
        if !lifeline.is_open() {
            return None;
        }
        // If it was cancelled just now, whoever did it finds the lease and gives it back.
        ledger.contended.insert(key, now.1 + CONTENDED_FOR);
        ledger.hold((key, claim), token, at, &lifeline, now);
    }
    used.0 = None;
    store.work.notify_one();
    Some(())
}

/// Closes a session unless what it was made for succeeds.
struct CloseOnDrop(Option<Arc<Lifeline>>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        if let Some(lifeline) = &self.0 {
            lifeline.session.close();
        }
    }
}

/// A new session to wait in.
async fn new_lifeline(store: &Weak<SessionStore>) -> Option<Arc<Lifeline>> {
    let connected = store.upgrade()?.connect(false).await;
    connected.inspect_err(|error| tracing::debug!(%error, "no connection to wait on")).ok()
}

/// Ends a wait that nobody wants any more, until the server says that it is over.
async fn call_off(
    lifeline: &Lifeline,
    key: Key,
    settings: &Settings,
    mut blocking: Pin<&mut impl Future<Output = Result<i64>>>,
) {
    for _ in 0..CANCELLATIONS {
        lifeline.cancel(settings).await;
        // Granted or not: this session is not used again, a late cancellation might
        // hit its next statement. Its lock, if it has one, goes sooner this way.
        match tokio::time::timeout(LAST_WORD, &mut blocking).await {
            Err(_) => continue,
            Ok(Ok(_)) => unlock_soon(lifeline, key).await,
            Ok(Err(_)) => {}
        }
        break;
    }
}

/// Gives a lock back in a session that is about to be closed.
async fn unlock_soon(lifeline: &Lifeline, key: Key) {
    let _ = Box::pin(tokio::time::timeout(LAST_WORD, lifeline.unlock(&[key]))).await;
}
