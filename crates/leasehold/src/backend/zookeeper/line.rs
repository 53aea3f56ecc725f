//! The line of one lock, as one watch shows it.
//!
//! While few are before us, a recursive watch on the lock's node tells of everyone who comes
//! and goes, and nothing has to be listed again. Names are created once and deleted once,
//! and events come in the order of the changes: whoever sees *its own* node here has seen
//! everyone before it.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::AbortHandle;
use zookeeper_client::{AddWatchMode, EventType, SessionState};

use super::layout::{Contender, Layout, in_order};
use super::session::Session;
use crate::clock::Moment;

#[derive(Debug)]
pub(super) struct Line {
    picture: Mutex<Picture>,
    pub(super) changed: Notify,
    /// When somebody last looked.
    used: Mutex<Moment>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct Picture {
    line: Vec<Contender>,
    /// Not while events may have been missed.
    trusted: bool,
    over: bool,
}

/// Where a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Behind(usize),
    /// Not (yet) seen.
    Absent,
    /// Nothing can be said just now.
    Unknown,
    /// This line is watched no more.
    Over,
}

impl Line {
    /// Watches the line of a lock from now on.
    pub(super) fn watch(session: &Arc<Session>, lock: Arc<str>, layout: Layout) -> Arc<Self> {
        let line = Arc::new(Self {
            picture: Mutex::default(),
            changed: Notify::new(),
            used: Mutex::new(Moment::NEVER),
            task: OnceLock::new(),
        });
        let following = follow(Arc::downgrade(session), Arc::downgrade(&line), lock, layout);
        let task = tokio::spawn(following);
        let _ = line.task.set(task.abort_handle());
        line
    }

    /// Where the node of this name stands.
    pub(super) fn place(&self, child: &str) -> Place {
        let picture = self.picture.lock();
        if picture.over {
            return Place::Over;
        }
        if !picture.trusted {
            return Place::Unknown;
        }
        match picture.line.iter().position(|contender| contender.child == child) {
            Some(0) => Place::First,
            Some(ahead) => Place::Behind(ahead),
            None => Place::Absent,
        }
    }

    pub(super) fn used(&self, now: Moment) {
        *self.used.lock() = now;
    }

    pub(super) fn last_used(&self) -> Moment {
        *self.used.lock()
    }

    fn show(&self, line: Vec<Contender>) {
        let mut picture = self.picture.lock();
        picture.line = line;
        picture.trusted = true;
        drop(picture);
        self.changed.notify_waiters();
    }

    fn came(&self, child: &str, sequence: i32) {
        let mut picture = self.picture.lock();
        let line = &mut picture.line;
        if line.iter().any(|contender| contender.child == child) {
            return;
        }
        let at = line.partition_point(|other| in_order(other.sequence, sequence).is_lt());
        line.insert(at, Contender { child: child.to_owned(), sequence });
        drop(picture);
        self.changed.notify_waiters();
    }

    fn went(&self, child: &str) {
        self.picture.lock().line.retain(|contender| contender.child != child);
        self.changed.notify_waiters();
    }

    fn distrust(&self) {
        self.picture.lock().trusted = false;
        self.changed.notify_waiters();
    }

    fn end(&self) {
        self.picture.lock().over = true;
        self.changed.notify_waiters();
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

async fn follow(session: Weak<Session>, line: Weak<Line>, lock: Arc<str>, layout: Layout) {
    if try_to_follow(session, &line, &lock, layout).await.is_none()
        && let Some(line) = line.upgrade()
    {
        line.end();
    }
}

/// Follows the line for as long as somebody wants it; `None` when it cannot be followed.
async fn try_to_follow(
    session: Weak<Session>,
    line: &Weak<Line>,
    lock: &str,
    layout: Layout,
) -> Option<()> {
    let mut watcher = {
        let session = session.upgrade()?;
        // Both are sent now, in this order: nothing happens between them unseen.
        let watching = session.client.watch(lock, AddWatchMode::PersistentRecursive);
        let listing = session.client.list_children(lock);
        let watcher = watching.await.ok()?;
        let children = listing.await.ok()?;
        line.upgrade()?.show(layout.line(children));
        watcher
    };
    loop {
        let event = watcher.changed().await;
        let line = line.upgrade()?;
        let child = event.path.strip_prefix(lock).and_then(|rest| rest.strip_prefix('/'));
        match (event.event_type, child) {
            (EventType::Session, _) if event.session_state == SessionState::SyncConnected => {
                // Events are lost while there is no connection (ZOOKEEPER-4698).
                let session = session.upgrade()?;
                let children = session.client.list_children(lock).await.ok()?;
                line.show(layout.line(children));
            }
            (EventType::Session, _) => {
                line.distrust();
                if event.session_state.is_terminated() {
                    return None;
                }
            }
            (EventType::NodeCreated, Some(child)) => {
                if let Some(sequence) = layout.sequence(child) {
                    line.came(child, sequence);
                }
            }
            (EventType::NodeDeleted, Some(child)) => line.went(child),
            // The lock's own node was deleted, and with it all who stood in line.
            (EventType::NodeDeleted, None) => return None,
            _ => {}
        }
    }
}
