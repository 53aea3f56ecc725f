//! Cleaning up behind clients: a session outlives its leases, so what is not renewed, what
//! nobody waits on and what nobody knows of would stay for as long as the client lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::error::of_request;
use super::ledger::Shared;
use super::session::Session;
use super::{ZookeeperStore, nodes};
use crate::error::Result;
use crate::owner::Owner;

/// How long it rests between two rounds, which is how late it may be.
const REST: Duration = Duration::from_millis(200);
/// How long one round may take, before the next one begins.
const ROUND: Duration = Duration::from_secs(2);
/// How long a queue is followed that nobody looks at.
const LINGER: Duration = Duration::from_secs(2);

/// Cleans up for as long as the store lives.
pub(super) async fn clean_up(store: Weak<ZookeeperStore>, shared: Arc<Shared>) {
    loop {
        sleep(REST).await;
        let Some(store) = store.upgrade() else { return };
        let busy = timeout(ROUND, clean_once(&store)).await.unwrap_or(true);
        drop(store);
        if !busy {
            shared.chores.notified().await;
        }
    }
}

/// One round; whether there will be another without being called.
async fn clean_once(store: &ZookeeperStore) -> bool {
    let now = store.shared.clock.now();
    // Before we use them ourselves.
    let mut busy = store.sessions.let_go(now);
    let sessions = store.sessions.open_ones();
    let overdue = store.shared.ledger.lock().overdue(now);
    join_all(overdue.into_iter().map(|owner| let_go(store, owner))).await;
    busy |= !store.shared.ledger.lock().is_empty();
    for session in sessions {
        let due = session.is_connected() && session.take_sweep(now);
        if due && sweep(store, &session).await.is_err() {
            session.expect_strangers();
        }
        // Queues that nobody looks at are followed no more.
        let mut queues = session.queues.lock();
        queues.retain(|_, queue| Arc::strong_count(queue) > 1 || *queue.used.lock() + LINGER > now);
        busy |= session.has_sweeps() || !queues.is_empty();
    }
    busy
}

/// A claim that nobody wants any more.
async fn let_go(store: &ZookeeperStore, owner: Owner) {
    let Some(entry) = store.shared.entry(owner) else { return };
    if entry.session.is_over() {
        // Its nodes went with it. A hold is told by its next renewal that it is lost.
        if entry.node().is_none() || store.shared.give_up(owner) {
            store.shared.remove(owner);
        }
        return;
    }
    if !entry.session.is_connected() || !store.shared.give_up(owner) {
        return;
    }
    if entry.node().is_none() {
        store.shared.bury(owner, entry.claim.ttl);
        entry.session.expect_strangers();
    }
    if let Err(error) = nodes::take_out(store, owner).await {
        tracing::debug!(lock = %entry.claim.name, %owner, %error, "a node is not deleted yet");
    }
}

/// Deletes what this session has and the ledger does not know: a claim that came late,
/// on a connection that had been given up.
async fn sweep(store: &ZookeeperStore, session: &Session) -> Result<()> {
    let nodes = session.client.list_ephemerals(store.paths.root()).await.map_err(of_request)?;
    for path in nodes {
        let child = path.rsplit('/').next().unwrap_or_default();
        let stranger = store.target.layout.owner(child);
        if stranger.is_some_and(|owner| !store.shared.ledger.lock().contains(owner)) {
            tracing::debug!(%path, "deletes the node of a claim that came late");
            session.delete(&path).await?;
        }
    }
    Ok(())
}
