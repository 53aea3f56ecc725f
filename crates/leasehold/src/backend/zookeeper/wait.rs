//! Waiting in line.
//!
//! Those near the head follow the whole line by one watch; those far behind watch only the
//! node before their own, so that a release wakes a bounded few however many wait. A slow
//! look behind it all repairs what a watch may have missed.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::sleep;

use super::ZookeeperStore;
use super::error::mixed;
use super::line::{Line, Place};
use super::session::Session;
use super::table::{Entry, Node, Stand};
use crate::backend::{Claim, Grant, Turn};
use crate::clock::Moment;
use crate::error::{Error, Result};
use crate::owner::Owner;

/// How many may be before us while we follow the whole line.
pub(super) const FEW: usize = 24;
/// How often the line is looked at without a reason: near the head, and far behind.
const SLOW_LOOK: Duration = Duration::from_secs(5);
const SLOWER_LOOK: Duration = Duration::from_secs(30);
/// Before trying again what failed.
const PAUSE: Duration = Duration::from_millis(50);

/// Somebody waits on a place in line.
struct Attending {
    store: Arc<ZookeeperStore>,
    owner: Owner,
}

impl Attending {
    fn new(store: Arc<ZookeeperStore>, owner: Owner) -> Self {
        store.books.table.attend(owner, 1, store.books.clock.now());
        Self { store, owner }
    }
}

impl Drop for Attending {
    fn drop(&mut self) {
        let books = &self.store.books;
        books.table.attend(self.owner, -1, books.clock.now());
        books.ring.notify_one();
    }
}

/// What to do next.
enum Next {
    Granted(Grant),
    /// The place is lost.
    ClaimAgain,
    LookAgain,
    /// The lock cannot be used as it is; the place stays.
    Refused(Error),
}

impl ZookeeperStore {
    pub(super) async fn wait_in_line(self: Arc<Self>, claim: Claim) -> Result<Turn> {
        let owner = claim.owner;
        let _attending = Attending::new(self.clone(), owner);
        loop {
            let Some(entry) = self.books.table.get(owner) else { return Ok(Turn::TryAgain) };
            if entry.session.is_over() {
                self.books.table.remove(owner);
                return Ok(Turn::TryAgain);
            }
            let (node, ahead) = match &entry.stand {
                Stand::Held { node, proof, .. } => {
                    return Ok(Turn::Granted(Grant { token: node.token, proof: *proof }));
                }
                Stand::Waiting { node, ahead, .. } => (node.clone(), *ahead),
                Stand::Asked { .. } | Stand::Leaving { .. } => return Ok(Turn::TryAgain),
            };
            let next = match ahead <= FEW {
                true => self.near_the_head(&entry, owner, &node).await,
                false => self.far_behind(&entry, owner, &node).await,
            };
            match next {
                Next::Granted(grant) => return Ok(Turn::Granted(grant)),
                Next::ClaimAgain => return Ok(Turn::TryAgain),
                Next::LookAgain => {}
                Next::Refused(error) => return Err(error),
            }
        }
    }

    async fn near_the_head(&self, entry: &Entry, owner: Owner, node: &Node) -> Next {
        let line = self.follow(&entry.session, &entry.lock);
        let clock = &self.books.clock;
        let standing = line.stand_in(&node.child);
        let mut look_at = clock.now() + SLOW_LOOK;
        loop {
            let (place, changed) = standing.look();
            line.used(clock.now());
            match place {
                Place::First => return self.take(entry, owner, node).await,
                Place::Behind(ahead) if ahead > 2 * FEW => {
                    self.books.table.queued(owner, node.clone(), ahead, clock.now());
                    return Next::LookAgain;
                }
                Place::Mixed(foreign) => {
                    return Next::Refused(mixed(&entry.lock, &foreign, self.target.layout));
                }
                Place::Over => {
                    forget(&entry.session, &entry.lock, &line);
                    sleep(PAUSE).await;
                    return Next::LookAgain;
                }
                Place::Behind(_) | Place::Absent | Place::Unknown => {}
            }
            let beat = self.next_beat(entry);
            tokio::select! {
                () = changed => continue,
                () = clock.sleep_until(beat.min(look_at)) => {}
            }
            if !self.keep_up(entry).await {
                return Next::LookAgain;
            }
            let now = clock.now();
            let missing = line.place(&node.child) == Place::Absent;
            if missing || now >= look_at {
                look_at = now + SLOW_LOOK;
                match self.look(entry, owner, node).await {
                    Ok(Some(0)) => return self.take(entry, owner, node).await,
                    Ok(Some(_)) => {}
                    Ok(None) => return Next::ClaimAgain,
                    Err(error) => return Next::Refused(error),
                }
            }
        }
    }

    async fn far_behind(&self, entry: &Entry, owner: Owner, node: &Node) -> Next {
        let clock = &self.books.clock;
        let Ok(listing) = self.list(&entry.session, &entry.lock, &entry.name).await else {
            sleep(PAUSE).await;
            return Next::LookAgain;
        };
        if let Err(error) = self.refuse_mixed(&entry.lock, &listing) {
            return Next::Refused(error);
        }
        let Some(ahead) = listing.ahead_of(&node.child) else {
            self.books.table.remove(owner);
            return Next::ClaimAgain;
        };
        if ahead == 0 {
            return self.take(entry, owner, node).await;
        }
        self.books.table.queued(owner, node.clone(), ahead, clock.now());
        if ahead <= FEW {
            return Next::LookAgain;
        }
        let before = format!("{}/{}", entry.lock, listing.line[ahead - 1].child);
        let watcher = match entry.session.client.check_and_watch_stat(&before).await {
            Ok((Some(_), watcher)) => watcher,
            // Gone just now.
            Ok((None, _)) => return Next::LookAgain,
            Err(_) => {
                sleep(PAUSE).await;
                return Next::LookAgain;
            }
        };
        let mut changed = std::pin::pin!(watcher.changed());
        let look_at = clock.now() + SLOWER_LOOK;
        loop {
            let beat = self.next_beat(entry);
            tokio::select! {
                _ = &mut changed => return Next::LookAgain,
                () = clock.sleep_until(beat.min(look_at)) => {}
            }
            if !self.keep_up(entry).await || clock.now() >= look_at {
                return Next::LookAgain;
            }
        }
    }

    /// First in line: ours, if the session is proved for long enough to be of use.
    async fn take(&self, entry: &Entry, owner: Owner, node: &Node) -> Next {
        if entry.session.is_proof_old(entry.ttl())
            && entry.session.prove(&entry.lock).await.is_err()
        {
            sleep(PAUSE).await;
            return Next::LookAgain;
        }
        let now = self.books.clock.now();
        match self.grant(&entry.session, owner, node.clone(), now) {
            Some(grant) => Next::Granted(grant),
            None => Next::ClaimAgain,
        }
    }

    /// How many are before us, asked of the server; `None` if our node is gone. An error if
    /// nodes of the other layout are there, too.
    async fn look(&self, entry: &Entry, owner: Owner, node: &Node) -> Result<Option<usize>> {
        let Ok(listing) = self.list(&entry.session, &entry.lock, &entry.name).await else {
            // Not known is not gone.
            return Ok(Some(usize::MAX));
        };
        self.refuse_mixed(&entry.lock, &listing)?;
        let ahead = listing.ahead_of(&node.child);
        if ahead.is_none() {
            self.books.table.remove(owner);
        }
        Ok(ahead)
    }

    /// When the session is to be proved next, so that a grant is of use when it comes.
    fn next_beat(&self, entry: &Entry) -> Moment {
        let now = self.books.clock.now();
        (entry.session.proved_at() + entry.ttl() / 4).max(now + PAUSE)
    }

    /// Keeps the proof young; whether the session lives.
    async fn keep_up(&self, entry: &Entry) -> bool {
        if entry.session.age_of_proof() >= entry.ttl() / 4 {
            // Without an answer there will be another beat.
            let _ = tokio::time::timeout(entry.ttl() / 4, entry.session.prove(&entry.lock)).await;
        }
        !entry.session.is_over()
    }

    /// Follows the line of this lock, if we do not yet.
    pub(super) fn follow(&self, session: &Arc<Session>, lock: &Arc<str>) -> Arc<Line> {
        let mut lines = session.lines.lock();
        let line = lines.get(lock).filter(|line| !line.is_over()).cloned().unwrap_or_else(|| {
            let line = Line::watch(session, lock.clone(), self.target.layout);
            lines.insert(lock.clone(), line.clone());
            line
        });
        line.used(self.books.clock.now());
        line
    }
}

fn forget(session: &Session, lock: &str, line: &Arc<Line>) {
    let mut lines = session.lines.lock();
    if lines.get(lock).is_some_and(|other| Arc::ptr_eq(other, line)) {
        lines.remove(lock);
    }
}
