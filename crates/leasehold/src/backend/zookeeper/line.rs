//! The line of one lock, as one watch shows it.
//!
//! While few are before us, a recursive watch on the lock's node tells of everyone who comes
//! and goes, and nothing has to be listed again. Names are created once and deleted once,
//! and events come in the order of the changes: whoever sees *its own* node here has seen
//! everyone before it.

use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::AbortHandle;
use tokio::time::timeout;
use zookeeper_client::{AddWatchMode, EventType, SessionState};

use super::layout::{Contender, Layout, Listing, in_order};
use super::session::Session;
use super::wait::FEW;
use crate::clock::Moment;

/// How many who come one after the other join a long line together.
const GROUP: i32 = 6;
/// A line of which so many are left while they gather.
const LONG: usize = 8;
/// How long to wait for others.
const GATHER_FOR: Duration = Duration::from_millis(10);

/// The group that a contender's number is in: numbers are given one by one.
fn group(contender: &Contender) -> i32 {
    contender.sequence.div_euclid(GROUP)
}

#[derive(Debug)]
pub(super) struct Line {
    picture: Mutex<Picture>,
    /// Those who wait here: only told when it is about a node of theirs, or about us all.
    changed: Notify,
    /// Those who are about to join: told when the head comes to another group of numbers.
    advanced: Notify,
    /// When somebody last looked.
    used: Mutex<Moment>,
    task: OnceLock<AbortHandle>,
}

#[derive(Debug, Default)]
struct Picture {
    line: Vec<Contender>,
    /// Lock nodes of the other layout.
    foreign: Vec<String>,
    /// Not while events may have been missed.
    trusted: bool,
    over: bool,
    /// The nodes of those who wait here.
    wanted: Vec<Arc<str>>,
}

impl Picture {
    fn wants(&self, child: &str) -> bool {
        self.wanted.iter().any(|wanted| **wanted == *child)
    }

    /// Whether one of those who wait here is first.
    fn is_anyones_turn(&self) -> bool {
        self.line.first().is_some_and(|first| self.wants(&first.child))
    }

    /// Where this node is, or where it belongs.
    fn position(&self, child: &str, sequence: i32) -> Result<usize, usize> {
        let at = self.line.partition_point(|other| in_order(other.sequence, sequence).is_lt());
        let mut same = self.line[at..].iter().take_while(|other| other.sequence == sequence);
        same.position(|other| other.child == child).map(|after| at + after).ok_or(at)
    }
}

/// Where a node stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    First,
    Behind(usize),
    /// Not (yet) seen.
    Absent,
    /// A node of the other layout is there, too: this one.
    Mixed(String),
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
            advanced: Notify::new(),
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
        // Whoever made it before our node was seen before it.
        if let Some(foreign) = picture.foreign.first() {
            return Place::Mixed(foreign.clone());
        }
        match picture.line.iter().position(|contender| contender.child == child) {
            Some(0) => Place::First,
            Some(ahead) => Place::Behind(ahead),
            None => Place::Absent,
        }
    }

    /// Before joining a long line: until its head comes to another group of numbers, which
    /// all who follow it see at once.
    ///
    /// So newcomers of many clients join together, and their creations share a flush of the
    /// server's log. One by one, each of them would stand before somebody's release.
    pub(super) async fn gather(&self) {
        let Some(group) = self.group_of_head() else { return };
        let gathered = async {
            loop {
                let mut advanced = std::pin::pin!(self.advanced.notified());
                // From here on no change is missed.
                advanced.as_mut().enable();
                if self.group_of_head() != Some(group) {
                    return;
                }
                advanced.await;
            }
        };
        // In time or not: nobody loses a place that it does not have.
        let _ = timeout(GATHER_FOR, gathered).await;
    }

    /// Which group of numbers the head of a long line is in.
    fn group_of_head(&self) -> Option<i32> {
        let picture = self.picture.lock();
        let long = picture.trusted && !picture.over && picture.line.len() >= LONG;
        picture.line.first().filter(|_| long).map(group)
    }

    /// Who is first, as far as we know.
    pub(super) fn first(&self) -> Option<Contender> {
        self.picture.lock().line.first().cloned()
    }

    /// Whether it shows all that happens just now.
    pub(super) fn is_up_to_date(&self) -> bool {
        let picture = self.picture.lock();
        picture.trusted && !picture.over
    }

    pub(super) fn is_over(&self) -> bool {
        self.picture.lock().over
    }

    /// Whether nobody here waits, but many elsewhere: then it is not kept for the next one,
    /// or each of many who were served would be told of all others for a while.
    fn is_of_no_use(&self) -> bool {
        let picture = self.picture.lock();
        picture.wanted.is_empty() && picture.line.len() > 2 * FEW
    }

    pub(super) fn used(&self, now: Moment) {
        *self.used.lock() = now;
    }

    pub(super) fn last_used(&self) -> Moment {
        *self.used.lock()
    }

    /// Waits on the place of this node, until dropped.
    pub(super) fn stand_in(self: &Arc<Self>, child: &Arc<str>) -> Standing {
        self.picture.lock().wanted.push(child.clone());
        Standing { line: self.clone(), child: child.clone() }
    }

    fn show(&self, listing: Listing) {
        let mut picture = self.picture.lock();
        picture.line = listing.line;
        picture.foreign = listing.foreign;
        picture.trusted = true;
        drop(picture);
        self.tell_all();
    }

    fn came(&self, child: &str, sequence: i32) {
        let mut picture = self.picture.lock();
        if let Err(at) = picture.position(child, sequence) {
            picture.line.insert(at, Contender { child: child.to_owned(), sequence });
            self.tell(&picture, child);
        }
    }

    fn went(&self, child: &str, sequence: i32) {
        let mut picture = self.picture.lock();
        if let Ok(at) = picture.position(child, sequence) {
            let gone = picture.line.remove(at);
            self.tell(&picture, child);
            if at == 0 && picture.line.first().map(group) != Some(group(&gone)) {
                self.advanced.notify_waiters();
            }
        }
    }

    /// One of the other layout came: that concerns all who wait here.
    fn foreign_came(&self, child: &str) {
        let mut picture = self.picture.lock();
        if !picture.foreign.iter().any(|other| other == child) {
            picture.foreign.push(child.to_owned());
        }
        drop(picture);
        self.changed.notify_waiters();
    }

    fn foreign_went(&self, child: &str) {
        self.picture.lock().foreign.retain(|other| other != child);
    }

    /// After one came or went: most of what happens is nothing to those who wait here.
    fn tell(&self, picture: &Picture, child: &str) {
        if picture.wants(child) || picture.is_anyones_turn() {
            self.changed.notify_waiters();
        }
    }

    fn distrust(&self) {
        self.picture.lock().trusted = false;
        self.tell_all();
    }

    fn end(&self) {
        self.picture.lock().over = true;
        self.tell_all();
    }

    fn tell_all(&self) {
        self.changed.notify_waiters();
        self.advanced.notify_waiters();
    }
}

/// Somebody who waits on the place of a node.
#[derive(Debug)]
pub(super) struct Standing {
    line: Arc<Line>,
    child: Arc<str>,
}

impl Standing {
    /// Where the node stands now, and what completes when that may have changed.
    pub(super) fn look(&self) -> (Place, Pin<Box<Notified<'_>>>) {
        let mut changed = Box::pin(self.line.changed.notified());
        // From here on no change is missed.
        changed.as_mut().enable();
        (self.line.place(&self.child), changed)
    }

    /// Where the node stands, which is known to be there: its event is at most on its way.
    pub(super) async fn seen(&self) -> Place {
        loop {
            let (place, changed) = self.look();
            if place != Place::Absent {
                return place;
            }
            changed.await;
        }
    }
}

impl Drop for Standing {
    fn drop(&mut self) {
        let mut picture = self.line.picture.lock();
        if let Some(at) = picture.wanted.iter().position(|wanted| Arc::ptr_eq(wanted, &self.child))
        {
            picture.wanted.swap_remove(at);
        }
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
        line.upgrade()?.show(layout.read(children));
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
                line.show(layout.read(children));
            }
            (EventType::Session, _) => {
                line.distrust();
                if event.session_state.is_terminated() {
                    return None;
                }
            }
            // Below a child is somebody else's lock.
            (_, Some(child)) if child.contains('/') => {}
            (EventType::NodeCreated, Some(child)) => {
                if let Some(sequence) = layout.sequence(child) {
                    line.came(child, sequence);
                } else if layout.is_foreign(child) {
                    line.foreign_came(child);
                }
            }
            (EventType::NodeDeleted, Some(child)) => {
                if let Some(sequence) = layout.sequence(child) {
                    line.went(child, sequence);
                } else if layout.is_foreign(child) {
                    line.foreign_went(child);
                }
            }
            // The lock's own node was deleted, and with it all who stood in line.
            (EventType::NodeDeleted, None) => return None,
            _ => {}
        }
        if line.is_of_no_use() {
            return None;
        }
    }
}
