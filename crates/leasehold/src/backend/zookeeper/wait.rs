//! Waiting in the queue.
//!
//! Those near the head follow the whole queue by one watch; those far behind watch only the
//! node before their own, so that a release wakes a bounded few however many wait. A slow
//! look behind it all repairs what a watch may have missed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::error::mixed;
use super::layout::Place;
use super::ledger::{Entry, Node, Shared, Stage};
use super::queue::{FEW, Queue};
use super::{ZookeeperStore, nodes};
use crate::backend::{Claim, Turn};
use crate::clock::Moment;
use crate::error::Result;
use crate::owner::Owner;

/// How often the queue is looked at without a reason: near the head, and far behind.
const SLOW_LOOK: Duration = Duration::from_secs(5);
const SLOWER_LOOK: Duration = Duration::from_secs(30);
/// Before trying again what failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Somebody waits on a place in the queue.
struct Attending {
    shared: Arc<Shared>,
    owner: Owner,
}

impl Drop for Attending {
    fn drop(&mut self) {
        self.shared.attend(self.owner, -1);
        self.shared.chores.notify_one();
    }
}

pub(super) async fn wait(store: Arc<ZookeeperStore>, claim: Claim) -> Result<Turn> {
    store.shared.attend(claim.owner, 1);
    let _attending = Attending { shared: store.shared.clone(), owner: claim.owner };
    loop {
        let Some(entry) = store.shared.entry(claim.owner) else { return Ok(Turn::TryAgain) };
        if entry.session.is_over() {
            store.shared.remove(claim.owner);
            return Ok(Turn::TryAgain);
        }
        let turn = match &entry.stage {
            Stage::Waiting { node, ahead, .. } if *ahead <= FEW => {
                near_the_head(&store, &entry, node).await?
            }
            Stage::Waiting { node, .. } => far_behind(&store, &entry, node).await?,
            _ => return Ok(entry.grant().map_or(Turn::TryAgain, Turn::Granted)),
        };
        if let Some(turn) = turn {
            return Ok(turn);
        }
    }
}

/// An error if the lock cannot be used as it is; the place stays. `None`: look again.
async fn near_the_head(store: &ZookeeperStore, entry: &Entry, node: &Node) -> Result<Option<Turn>> {
    let (owner, clock) = (entry.claim.owner, &store.shared.clock);
    let refused = |foreign: &str| mixed(&entry.lock, foreign, store.target.layout);
    let queue = follow(store, entry);
    let waiter = queue.join(&node.child);
    let mut look_at = clock.now() + SLOW_LOOK;
    loop {
        let (place, changed) = waiter.look();
        *queue.used.lock() = clock.now();
        match place {
            Place::First => return take(store, entry, node).await,
            Place::Behind(ahead) if ahead > 2 * FEW => {
                store.shared.queued(owner, node.clone(), ahead);
                return Ok(None);
            }
            Place::Mixed(foreign) => return Err(refused(&foreign)),
            Place::Over => return pause().await,
            Place::Behind(_) | Place::Absent | Place::Unknown => {}
        }
        tokio::select! {
            () = changed => continue,
            () = clock.sleep_until(next_heartbeat(store, entry).min(look_at)) => {}
        }
        if !keep_up(entry).await {
            return Ok(None);
        }
        let now = clock.now();
        if queue.place(&node.child) == Place::Absent || now >= look_at {
            look_at = now + SLOW_LOOK;
            let listing = nodes::list(store, entry).await;
            match listing.map_or(Place::Unknown, |listing| listing.place(&node.child)) {
                Place::First => return take(store, entry, node).await,
                Place::Mixed(foreign) => return Err(refused(&foreign)),
                Place::Absent => {
                    store.shared.remove(owner);
                    return Ok(Some(Turn::TryAgain));
                }
                // Not known is not gone.
                Place::Behind(_) | Place::Unknown | Place::Over => {}
            }
        }
    }
}

async fn far_behind(store: &ZookeeperStore, entry: &Entry, node: &Node) -> Result<Option<Turn>> {
    let (owner, clock) = (entry.claim.owner, &store.shared.clock);
    let Ok(listing) = nodes::list(store, entry).await else { return pause().await };
    let ahead = match listing.place(&node.child) {
        Place::First => return take(store, entry, node).await,
        Place::Behind(ahead) => ahead,
        Place::Mixed(foreign) => return Err(mixed(&entry.lock, &foreign, store.target.layout)),
        Place::Absent | Place::Unknown | Place::Over => {
            store.shared.remove(owner);
            return Ok(Some(Turn::TryAgain));
        }
    };
    store.shared.queued(owner, node.clone(), ahead);
    if ahead <= FEW {
        return Ok(None);
    }
    let before = format!("{}/{}", entry.lock, listing.queue[ahead - 1].child);
    let watcher = match entry.session.client.check_and_watch_stat(&before).await {
        Ok((Some(_), watcher)) => watcher,
        // Gone just now.
        Ok((None, _)) => return Ok(None),
        Err(_) => return pause().await,
    };
    let mut changed = std::pin::pin!(watcher.changed());
    let look_at = clock.now() + SLOWER_LOOK;
    loop {
        tokio::select! {
            _ = &mut changed => return Ok(None),
            () = clock.sleep_until(next_heartbeat(store, entry).min(look_at)) => {}
        }
        if !keep_up(entry).await || clock.now() >= look_at {
            return Ok(None);
        }
    }
}

/// First in the queue: ours, if the session is proved for long enough to be of use.
async fn take(store: &ZookeeperStore, entry: &Entry, node: &Node) -> Result<Option<Turn>> {
    let Entry { claim, session, lock, .. } = entry;
    if session.renew_proof(claim.ttl, lock).await.is_err() {
        return pause().await;
    }
    let grant = store.shared.granted(claim.owner, node.clone(), session);
    Ok(Some(grant.map_or(Turn::TryAgain, Turn::Granted)))
}

/// Looks again a little later.
async fn pause() -> Result<Option<Turn>> {
    sleep(PAUSE).await;
    Ok(None)
}

/// When the session is to be proved next, so that a grant is of use when it comes.
fn next_heartbeat(store: &ZookeeperStore, Entry { session, claim, .. }: &Entry) -> Moment {
    (session.proved_at() + claim.ttl / 4).max(store.shared.clock.now() + PAUSE)
}

/// Keeps the proof young; whether the session lives.
async fn keep_up(Entry { session, claim, lock, .. }: &Entry) -> bool {
    if session.age_of_proof() >= claim.ttl / 4 {
        // Without an answer there will be another heartbeat.
        let _ = timeout(claim.ttl / 4, session.prove(lock)).await;
    }
    !session.is_over()
}

/// Follows the queue of this lock, if we do not yet.
fn follow(store: &ZookeeperStore, Entry { session, lock, .. }: &Entry) -> Arc<Queue> {
    let mut queues = session.queues.lock();
    let queue = queues.get(lock).filter(|queue| !queue.is_over()).cloned().unwrap_or_else(|| {
        let queue = Queue::follow(session, lock.clone(), store.target.layout);
        queues.insert(lock.clone(), queue.clone());
        queue
    });
    *queue.used.lock() = store.shared.clock.now();
    queue
}

pub(super) async fn leave(store: Arc<ZookeeperStore>, claim: Claim) -> Result<()> {
    nodes::take_out(&store, claim.owner).await
}
