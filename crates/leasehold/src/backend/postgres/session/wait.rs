//! Waiting: a session of its own blocks in the server's queue, first come, first served. The
//! lock it gets stays on it.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::types::ToSql;
use tokio_util::sync::CancellationToken;

use super::super::key::Key;
use super::super::url::Settings;
use super::asking::UnderWay;
use super::claim::{CROWDED_FOR, unlock};
use super::lifeline::Lifeline;
use super::table::{Held, Waiting};
use super::{SessionStore, hold, verbs};
use crate::backend::{Claim, Grant, Turn, Verdict};
use crate::detach::DetachOnDrop;
use crate::error::Result;
use crate::owner::Owner;

/// How long a cancelled statement may take to say that it is, before it is told again: the
/// cancellation may have come before the statement.
const LAST_WORD: Duration = Duration::from_millis(200);
const CANCELLATIONS: usize = 10;

impl SessionStore {
    /// Takes a place in line.
    pub(super) fn line_up(self: &Arc<Self>, claim: Claim, key: Key) -> Verdict {
        let cancel = CancellationToken::new();
        let (owner, left) = (claim.owner, self.clock.now());
        let (store, cancelled, under_way) = (Arc::downgrade(self), cancel.clone(), UnderWay::new());
        let asking = under_way.asking();
        let request = self.detacher.begin(async move {
            let got = block(&store, claim, key, &cancelled).await;
            drop(under_way);
            got
        });
        let waiting = Waiting { request: Some(request), asking, cancel, left };
        self.table.lock().waiting.insert(owner, waiting);
        self.work.notify_one();
        Verdict::Queued(None)
    }

    /// Waits until the claim in line is granted. Dropping it keeps the place in line.
    pub(super) async fn attend(self: &Arc<Self>, claim: &Claim) -> Result<Turn> {
        let Some(mut attending) = Attending::new(self, claim.owner) else {
            let grant = self.table.lock().tell(claim.owner);
            return Ok(grant.map_or(Turn::TryAgain, Turn::Granted));
        };
        Ok(match attending.end().await {
            Some(grant) => Turn::Granted(grant),
            None => Turn::TryAgain,
        })
    }

    /// Out of the line, or out of the grant that just came.
    pub(super) async fn leave_line(self: &Arc<Self>, claim: &Claim) -> Result<()> {
        self.stop_waiting(claim).await;
        let held = self.table.lock().remove(claim.owner);
        match held {
            Some(held) => hold::give_back(self, vec![held]).await.map(drop),
            // A wait is also over when the server is gone. Then the server did not hear of it, and
            // who held the lock before is no answer any more.
            None => self.aside.session().await?.rows(&verbs::PING, &[]).await.map(drop),
        }
    }

    /// A session that waits for nothing.
    fn spare(&self) -> Option<Arc<Lifeline>> {
        let mut table = self.table.lock();
        while let Some(line) = table.spare.pop() {
            if line.is_open() {
                return Some(line);
            }
        }
        None
    }

    /// Ends a wait, and returns when the server knows of it. What was granted stays granted.
    pub(super) async fn stop_waiting(&self, claim: &Claim) {
        let waiting = self.table.lock().waiting.remove(&claim.owner);
        if let Some(waiting) = waiting {
            waiting.cancel.cancel();
            // Somebody may have it, and not poll it.
            self.detacher.detach_all();
            waiting.over().await;
        }
    }
}

/// Somebody who waits for the end of a wait. Given up, the wait goes on.
struct Attending {
    store: Arc<SessionStore>,
    owner: Owner,
    request: Option<DetachOnDrop<Option<Grant>>>,
}

impl Attending {
    fn new(store: &Arc<SessionStore>, owner: Owner) -> Option<Self> {
        let request = store.table.lock().waiting.get_mut(&owner)?.request.take();
        request.map(|request| Self { store: store.clone(), owner, request: Some(request) })
    }

    async fn end(&mut self) -> Option<Grant> {
        let got = self.request.as_mut()?.await.flatten();
        self.request = None;
        let mut table = self.store.table.lock();
        table.waiting.remove(&self.owner);
        got.and_then(|_| table.tell(self.owner))
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        let Some(request) = self.request.take() else { return };
        request.detach();
        let now = self.store.clock.now();
        if let Some(waiting) = self.store.table.lock().waiting.get_mut(&self.owner) {
            waiting.request = Some(request);
            waiting.left = now;
        }
    }
}

/// Blocks until the lock is got, or the wait is cancelled. Holds the store only now and
/// then: a wait must not keep alive what nobody uses any more.
async fn block(
    store: &Weak<SessionStore>,
    claim: Claim,
    key: Key,
    cancel: &CancellationToken,
) -> Option<Grant> {
    let (spare, clock, settings) = {
        let store = store.upgrade()?;
        (store.spare(), store.clock.clone(), store.settings.clone())
    };
    let line = match spare {
        Some(line) => line,
        None => tokio::select! {
            line = Box::pin(new_line(store)) => line?,
            () = cancel.cancelled() => return None,
        },
    };
    let used = OneWay(Some(line.clone()));
    if !line.carries(claim.ttl) {
        tokio::select! {
            carried = Box::pin(line.carry(claim.ttl)) => carried.ok()?,
            () = cancel.cancelled() => return None,
        }
    }
    let mut at = clock.now();
    let blocking = ask(&line, key);
    let mut blocking = std::pin::pin!(blocking);
    let asked = tokio::select! {
        biased;
        asked = &mut blocking => asked,
        () = cancel.cancelled() => {
            Box::pin(call_off(&line, key, &settings, blocking)).await;
            return None;
        }
    };
    let token = match asked {
        Ok(token) => token,
        Err(error) => {
            tracing::debug!(%error, "a wait for a lock ended");
            // Advisory locks survive a statement that failed after it got them; the session
            // is not used again.
            unlock_soon(&line, key).await;
            return None;
        }
    };
    // Who waited long proves that the session is still there, and still has it
    // (etcd#11456: granted after its own session had expired).
    if at.until(clock.now()) > claim.ttl / 4 {
        at = clock.now();
        let proved = Box::pin(hold::prove(&line, &[key])).await.ok()?;
        if proved != [true] {
            return None;
        }
    }
    let store = store.upgrade()?;
    let held = Held::new((key, claim), token, at, &line, false, store.since());
    let (grant, owner) = (held.grant(), held.claim.owner);
    {
        let mut table = store.table.lock();
        // It ended with the answer, and whoever tells of that looked before.
        if !line.is_open() {
            return None;
        }
        // Cancelled just now: whoever did it finds the lease and gives it back.
        table.crowded.insert(key, held.granted + CROWDED_FOR);
        table.held.insert(owner, held);
    }
    used.stays();
    store.work.notify_one();
    Some(grant)
}

/// A session that is closed unless what it was made for succeeds.
struct OneWay(Option<Arc<Lifeline>>);

impl OneWay {
    fn stays(mut self) {
        self.0 = None;
    }
}

impl Drop for OneWay {
    fn drop(&mut self) {
        if let Some(line) = self.0.take() {
            line.session.close();
        }
    }
}

async fn ask(line: &Lifeline, key: Key) -> Result<i64> {
    let row = match &key {
        Key::One(key) => line.session.row(&verbs::BLOCK, &[key as &(dyn ToSql + Sync)]).await?,
        Key::Two(first, second) => line.session.row(&verbs::BLOCK_TWO, &[first, second]).await?,
    };
    Ok(row.get(0))
}

/// Ends a wait that nobody wants any more, until the server says that it is over.
async fn call_off(
    line: &Lifeline,
    key: Key,
    settings: &Settings,
    blocking: Pin<&mut impl Future<Output = Result<i64>>>,
) {
    let mut blocking = blocking;
    for _ in 0..CANCELLATIONS {
        line.cancel(settings).await;
        // Granted or not: this session is not used again, a late cancellation might
        // hit its next statement. Its lock, if it has one, goes sooner this way.
        match tokio::time::timeout(LAST_WORD, &mut blocking).await {
            Err(_) => continue,
            Ok(Ok(_)) => unlock_soon(line, key).await,
            Ok(Err(_)) => {}
        }
        break;
    }
}

/// Gives a lock back in a session that is about to be closed.
async fn unlock_soon(line: &Lifeline, key: Key) {
    let keys = [key];
    let _ = Box::pin(tokio::time::timeout(LAST_WORD, unlock(line, &keys))).await;
}

/// A new session to wait in.
async fn new_line(store: &Weak<SessionStore>) -> Option<Arc<Lifeline>> {
    let store = store.upgrade()?;
    match store.new_line().await {
        Ok(line) => Some(line),
        Err(error) => {
            tracing::debug!(%error, "no connection to wait on");
            None
        }
    }
}
