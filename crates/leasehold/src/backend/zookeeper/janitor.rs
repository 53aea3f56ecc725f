//! Cleaning up behind clients: a session outlives its leases, so what is not renewed, what
//! nobody waits on and what nobody knows of would stay for as long as the client lives.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::{sleep, timeout};

use super::ZookeeperStore;
use super::books::Books;
use super::error::of_request;
use super::session::Session;
use super::table::Entry;
use crate::clock::Moment;
use crate::error::Result;
use crate::owner::Owner;

/// How long it rests between two rounds, which is how late it may be.
const REST: Duration = Duration::from_millis(200);
/// How long one round may take, before the next one begins.
const ROUND: Duration = Duration::from_secs(2);
/// How long a line is followed that nobody looks at.
const LINGER: Duration = Duration::from_secs(2);

/// Cleans up for as long as the store lives.
pub(super) async fn clean_up(store: Weak<ZookeeperStore>, books: Arc<Books>) {
    loop {
        sleep(REST).await;
        let Some(store) = store.upgrade() else { return };
        let round = timeout(ROUND, store.clean_once());
        let busy = round.await.unwrap_or(true);
        drop(store);
        if !busy {
            books.ring.notified().await;
        }
    }
}

impl ZookeeperStore {
    /// One round; whether there will be another without being called.
    async fn clean_once(&self) -> bool {
        let now = self.books.clock.now();
        self.sessions.forget_ended();
        // Before we use them ourselves.
        let more = self.sessions.close_idle(now);
        let sessions = self.sessions.open_ones();
        let (overdue, next) = self.books.table.overdue(now);
        let mut busy = more || next != Moment::NEVER || !overdue.is_empty();
        join_all(overdue.into_iter().map(|(owner, entry)| self.let_go(owner, entry, now))).await;
        for session in sessions {
            if session.is_connected()
                && session.take_sweep(now)
                && self.sweep(&session).await.is_err()
            {
                session.expect_strangers();
            }
            busy |= session.next_sweep() != Moment::NEVER;
            busy |= !let_lines_go(&session, now);
        }
        busy
    }

    /// A claim that nobody wants any more.
    async fn let_go(&self, owner: Owner, entry: Entry, now: Moment) {
        if entry.session.is_over() {
            // Its nodes went with it. A hold is told by its next renewal that it is lost.
            if entry.node().is_none() || self.books.table.give_up(owner, now) {
                self.books.table.remove(owner);
            }
            return;
        }
        if !entry.session.is_connected() || !self.books.table.give_up(owner, now) {
            return;
        }
        if entry.node().is_none() {
            self.books.table.bar(owner, entry.ttl(), now);
            entry.session.expect_strangers();
        }
        if let Err(error) = self.take_out(owner).await {
            tracing::debug!(lock = %entry.name, %owner, %error, "a node is not deleted yet");
        }
    }

    /// Deletes what this session has and the table does not know: a claim that came late,
    /// on a connection that had been given up.
    async fn sweep(&self, session: &Session) -> Result<()> {
        let nodes = session.client.list_ephemerals(self.paths.root()).await.map_err(of_request)?;
        for path in nodes {
            let child = path.rsplit('/').next().unwrap_or_default();
            let stranger = self.target.layout.owner(child);
            if stranger.is_some_and(|owner| !self.books.table.contains(owner)) {
                tracing::debug!(%path, "deletes the node of a claim that came late");
                session.delete(&path).await?;
            }
        }
        Ok(())
    }
}

/// Stops following lines that nobody looks at; whether none is left.
fn let_lines_go(session: &Session, now: Moment) -> bool {
    let mut lines = session.lines.lock();
    lines.retain(|_, line| Arc::strong_count(line) > 1 || line.last_used() + LINGER > now);
    lines.is_empty()
}
