//! Waiting in a lock's queue. Near its head a waiter follows all of it by one watch; far from
//! it, it waits for one key to go, so that a thousand waiters do not hear of every hand-over.

use std::cmp::Reverse;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{GetOptions, SortOrder, SortTarget, TxnOp};
use tokio::sync::watch;

use super::EtcdStore;
use super::ledger::{Entry, KEEPS_PLACE};
use super::queue::{Followed, NEAR, Queue, View, ahead_of, created, key_alone};
use super::session::{Session, SessionState};
use super::watcher::{Heard, Watch};
use crate::backend::{Claim, Turn};
use crate::clock::Moment;
use crate::error::Result;

/// How often a waiter shows that it is there, at least.
const TICK: Duration = Duration::from_secs(1);
/// How long a request of a waiter may take.
const LIMIT: Duration = Duration::from_secs(2);
/// How long a waiter believes a watch that says nothing, at least.
const SILENCE: Duration = Duration::from_secs(2);

/// One waiter, and what it knows.
struct Waiter {
    store: Arc<EtcdStore>,
    claim: Claim,
    session: Arc<Session>,
    key: Vec<u8>,
    revision: i64,
    view: View,
    read_at: Moment,
    near: Option<(Arc<Queue>, watch::Receiver<()>)>,
    far: Option<Beacon>,
}

enum Step {
    Turn,
    Gone,
    Wait,
    Again,
}

pub(super) async fn wait(store: Arc<EtcdStore>, claim: Claim) -> Result<Turn> {
    let entry = store.ledger.lock().claims.get(claim.owner).cloned();
    let Some(Entry { session, revision: Some(revision), view: Some(view), .. }) = entry else {
        return Ok(Turn::TryAgain);
    };
    let key = store.layout.lock(&claim.name, session.id).into_bytes();
    let (read_at, near, far) = (store.clock.now(), None, None);
    let mut waiter = Waiter { store, claim, session, key, revision, view, read_at, near, far };
    loop {
        let now = waiter.store.clock.now();
        let wanted = waiter.store.ledger.lock().keep(waiter.claim.owner, now + KEEPS_PLACE);
        let step = match wanted && !waiter.session.has_ended() {
            true => waiter.step().await?,
            false => Step::Gone,
        };
        match step {
            Step::Again => {}
            Step::Wait => waiter.sleep().await,
            Step::Gone => {
                waiter.store.ledger.lock().forget(waiter.claim.owner, now);
                return Ok(Turn::TryAgain);
            }
            Step::Turn => return waiter.take().await,
        }
    }
}

/// Out of the queue, or out of the lock.
pub(super) async fn leave(store: Arc<EtcdStore>, claim: Claim) -> Result<()> {
    let entry = store.ledger.lock().claims.get(claim.owner).cloned();
    if let Some(entry) = entry {
        store.withdraw(&entry, claim.owner).await?;
        store.ledger.lock().forget(claim.owner, store.clock.now());
    }
    Ok(())
}

impl Waiter {
    async fn step(&mut self) -> Result<Step> {
        if self.is_near() {
            self.far = None;
            return self.step_near().await;
        }
        self.near = None;
        self.step_far().await
    }

    fn is_near(&self) -> bool {
        self.view.complete && self.view.ahead.len() <= NEAR
    }

    async fn step_near(&mut self) -> Result<Step> {
        let near = self.near.get_or_insert_with(|| self.store.queue(&self.claim.name));
        let (queue, changes) = near;
        // What changes from here on is heard of.
        changes.mark_unchanged();
        let queue = queue.clone();
        match queue.follow(&mut self.view, &self.key, self.revision) {
            Followed::Gone => Ok(Step::Gone),
            Followed::Broken => {
                self.near = None;
                Ok(Step::Again)
            }
            Followed::UpToDate if self.view.ahead.is_empty() => Ok(Step::Turn),
            Followed::NotYet | Followed::UpToDate if !self.is_silent() => Ok(Step::Wait),
            Followed::NotYet => {
                // Without a watch, a look now and then has to do.
                let there = self.read().await?;
                let first = self.view.complete && self.view.ahead.is_empty();
                Ok(match (there, first) {
                    (false, _) => Step::Gone,
                    (true, true) => Step::Turn,
                    (true, false) => Step::Wait,
                })
            }
            Followed::UpToDate => {
                let before = self.view.ahead.len();
                let there = self.read().await?;
                if there && self.view.ahead.len() < before {
                    // Somebody left, and the watch did not say so: it may be stuck.
                    self.near = None;
                    self.store.queues.lock().remove(&self.claim.name);
                }
                Ok(if there { Step::Again } else { Step::Gone })
            }
            Followed::ReadAgain => {
                let there = self.read().await?;
                queue.read_at(self.view.as_of, &self.store.watcher);
                Ok(if there { Step::Again } else { Step::Gone })
            }
        }
    }

    /// Waits for the key that has as many between it and us as we would follow.
    async fn step_far(&mut self) -> Result<Step> {
        let silent = self.is_silent();
        if let Some(far) = &mut self.far {
            let seen = *far.seen.borrow_and_update();
            let waits = seen == Seen::Nothing || seen == Seen::Created && far.looked;
            if waits && !silent {
                return Ok(Step::Wait);
            }
            if seen == Seen::Created {
                // It sees everything from now on, or should have: look at what was before. To
                // see these two keys does not cost etcd a look at the whole queue.
                far.looked = true;
                let looks = [key_alone(&*self.key), key_alone(&*far.key)];
                let looking = self.store.endpoints.within(LIMIT, self.store.look(looks));
                let ([own, ahead], _) = looking.await?;
                self.read_at = self.store.clock.now();
                if created(&own) != Some(self.revision) {
                    return Ok(Step::Gone);
                }
                if created(&ahead) == Some(far.created) {
                    return Ok(Step::Again);
                }
            }
        }
        self.far = None;
        if !self.read().await? {
            return Ok(Step::Gone);
        }
        if !self.is_near() {
            let mut ahead: Vec<_> = self.view.ahead.iter().collect();
            ahead.sort_unstable_by_key(|(created, _)| Reverse(*created));
            let farthest = ahead.get(NEAR);
            self.far = farthest.map(|(created, key)| Beacon::on(*created, key, &self.store));
        }
        Ok(Step::Again)
    }

    /// Whether nothing has been heard for long.
    fn is_silent(&self) -> bool {
        let patience = SILENCE.max(self.session.ttl / 3);
        self.read_at.until(self.store.clock.now()) > patience
    }

    /// Reads who is ahead, the nearest ones at least, and whether our own key is there.
    async fn read(&mut self) -> Result<bool> {
        let there = self.read_nearest(4 * NEAR as i64).await?;
        if there && !self.view.complete && self.view.ahead.len() <= NEAR {
            // Nested names fill what was read.
            return self.read_nearest(0).await;
        }
        Ok(there)
    }

    async fn read_nearest(&mut self, limit: i64) -> Result<bool> {
        let queue = self.store.layout.queue(&self.claim.name);
        let nearest = GetOptions::new()
            .with_range(queue.end)
            .with_max_create_revision(self.revision - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_keys_only()
            .with_limit(limit);
        let looks = [key_alone(&*self.key), TxnOp::get(queue.start, Some(nearest))];
        let looking = self.store.endpoints.within(LIMIT, self.store.look(looks));
        let ([own, mut queue], as_of) = looking.await?;
        let (complete, crowd) = (!queue.more(), queue.count());
        let claims = self.store.claims_among(&self.claim.name, queue.take_kvs());
        self.view = View { ahead: ahead_of(&claims, self.revision), as_of, complete, crowd };
        self.read_at = self.store.clock.now();
        Ok(created(&own) == Some(self.revision))
    }

    /// Until something changes, or for a tick.
    async fn sleep(&mut self) {
        let tick = self.store.clock.sleep(TICK);
        let changed = async {
            match (&mut self.near, &mut self.far) {
                (Some((_, changes)), _) => changes.changed().await,
                (None, Some(far)) => far.seen.changed().await,
                (None, None) => std::future::pending().await,
            }
        };
        tokio::select! {
            Ok(()) = changed => {}
            () = tick => {}
        }
    }

    /// It is our turn: the watch has shown our own key to be there. The session is proved
    /// again if its proof is not a young one (etcd#11456: a waiter was granted the lock
    /// after its own session had expired).
    async fn take(self) -> Result<Turn> {
        let Self { store, claim, session, .. } = self;
        let age = session.proved_at().until(store.clock.now());
        if age > session.ttl / 2 && session.prove().await? == SessionState::Ended {
            store.ledger.lock().forget(claim.owner, store.clock.now());
            return Ok(Turn::TryAgain);
        }
        if self.view.crowd > 2 * NEAR as i64 {
            // Others would go on hearing of every hand-over through it.
            store.queues.lock().remove(&claim.name);
        }
        // Given up meanwhile, its key is being removed.
        let grant = store.ledger.lock().grant(&claim, &session, self.revision);
        Ok(grant.map_or(Turn::TryAgain, Turn::Granted))
    }
}

/// A watch on one key ahead.
struct Beacon {
    key: Vec<u8>,
    created: i64,
    seen: watch::Receiver<Seen>,
    /// Whether the key was looked at since the watch is there.
    looked: bool,
    _watch: Watch,
}

/// What the watch has shown, at the most.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    Nothing,
    Created,
    /// The key has gone, or the watch is broken.
    Over,
}

impl Beacon {
    fn on(created: i64, key: &[u8], store: &EtcdStore) -> Self {
        let (signal, seen) = watch::channel(Seen::Nothing);
        let text = String::from_utf8_lossy(key).into_owned();
        // Just this key.
        let keys = Range { end: format!("{text}\0"), start: text };
        let watch = store.watcher.watch(keys, true, move |heard| {
            let now = match heard {
                Heard::Created(_) => Seen::Created,
                Heard::Events(_) | Heard::Broken => Seen::Over,
            };
            signal.send_modify(|seen| *seen = now.max(*seen));
        });
        Self { key: key.to_vec(), created, seen, looked: false, _watch: watch }
    }
}
