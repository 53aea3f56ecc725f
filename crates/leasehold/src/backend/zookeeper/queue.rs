//! The queue of one lock, as one watch shows it.
//!
//! While few are before us, a recursive watch on the lock's node tells of everyone who comes
//! and goes, and nothing has to be listed again. Names are created once and deleted once,
//! and events come in the order of the changes: a client that sees *its own* node here has
//! seen everyone before it.

use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zookeeper_client::{AddWatchMode, Client, EventType, SessionState};

use super::layout::{Contender, Layout, Listing, Place, in_order};
use crate::clock::Moment;

/// How many may be before us while we follow the whole queue.
pub(super) const FEW: usize = 24;
/// How many who come one after the other join a long queue together.
const GROUP: i32 = 6;
/// A queue of which so many are left while they gather.
const LONG: usize = 8;
/// How long to wait for others.
const GATHER_FOR: Duration = Duration::from_millis(10);

/// The group that a contender's number is in: numbers are given one by one.
fn group(contender: &Contender) -> i32 {
    contender.sequence.div_euclid(GROUP)
}

#[derive(Debug)]
pub(super) struct Queue {
    picture: Mutex<Picture>,
    /// Wakes those who wait here, after a change to a node of theirs or to all.
    changed: Notify,
    /// Wakes those who are about to join, when the head comes to another group of numbers.
    advanced: Notify,
    /// When somebody last looked.
    pub(super) used: Mutex<Moment>,
    /// Follows the queue for as long as it is wanted.
    task: Mutex<JoinSet<()>>,
}

#[derive(Debug, Default)]
struct Picture {
    listing: Listing,
    /// Not while events may have been missed.
    trusted: bool,
    over: bool,
    /// The nodes of those who wait here.
    wanted: Vec<Arc<str>>,
}

impl Picture {
    /// Whether it shows all that happens just now.
    fn is_up_to_date(&self) -> bool {
        self.trusted && !self.over
    }

    /// Whether one that came or went is, or lets be first, one of those who wait here. Most of
    /// what happens is nothing to them.
    fn concerns_us(&self, child: &str) -> bool {
        let wants = |child: &str| self.wanted.iter().any(|wanted| **wanted == *child);
        wants(child) || self.listing.queue.first().is_some_and(|first| wants(&first.child))
    }

    /// Where this node is, or where it belongs.
    fn position(&self, child: &str, sequence: i32) -> Result<usize, usize> {
        let queue = &self.listing.queue;
        let at = queue.partition_point(|other| in_order(other.sequence, sequence).is_lt());
        let mut same = queue[at..].iter().take_while(|other| other.sequence == sequence);
        same.position(|other| other.child == child).map(|after| at + after).ok_or(at)
    }
}

impl Queue {
    /// Follows the queue of a lock from now on, for as long as it is wanted and the session
    /// lives. (It keeps neither alive.)
    pub(super) fn follow(
        session: &Arc<impl AsRef<Client> + Send + Sync + 'static>,
        lock: Arc<str>,
        layout: Layout,
    ) -> Arc<Self> {
        let queue = Arc::new(Self {
            picture: Mutex::default(),
            changed: Notify::new(),
            advanced: Notify::new(),
            used: Mutex::new(Moment::NEVER),
            task: Mutex::default(),
        });
        let (session, weak) = (Arc::downgrade(session), Arc::downgrade(&queue));
        queue.task.lock().spawn(async move {
            if try_to_follow(session, &weak, &lock, layout).await.is_none()
                && let Some(queue) = weak.upgrade()
            {
                queue.tell_all(|picture| picture.over = true);
            }
        });
        queue
    }

    /// Where the node of this name stands.
    pub(super) fn place(&self, child: &str) -> Place {
        let picture = self.picture.lock();
        match (picture.over, picture.trusted) {
            (true, _) => Place::Over,
            (false, false) => Place::Unknown,
            (false, true) => picture.listing.place(child),
        }
    }

    /// Before joining a long queue: until its head comes to another group of numbers, which
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

    /// Which group of numbers the head of a long queue is in.
    fn group_of_head(&self) -> Option<i32> {
        let picture = self.picture.lock();
        let queue = &picture.listing.queue;
        let long = picture.is_up_to_date() && queue.len() >= LONG;
        queue.first().filter(|_| long).map(group)
    }

    /// Who is first, as far as we know.
    pub(super) fn first(&self) -> Option<Contender> {
        self.picture.lock().listing.queue.first().cloned()
    }

    pub(super) fn is_up_to_date(&self) -> bool {
        self.picture.lock().is_up_to_date()
    }

    pub(super) fn is_over(&self) -> bool {
        self.picture.lock().over
    }

    /// Whether nobody here waits, but many elsewhere: then it is not kept for the next one,
    /// or each of many who were served would be told of all others for a while.
    fn is_of_no_use(&self) -> bool {
        let picture = self.picture.lock();
        picture.wanted.is_empty() && picture.listing.queue.len() > 2 * FEW
    }

    /// Watches the place of this node, until dropped.
    pub(super) fn join(self: &Arc<Self>, child: &Arc<str>) -> Waiter {
        self.picture.lock().wanted.push(child.clone());
        Waiter { queue: self.clone(), child: child.clone() }
    }

    fn show(&self, listing: Listing) {
        self.tell_all(|picture| {
            picture.listing = listing;
            picture.trusted = true;
        });
    }

    fn came(&self, child: &str, layout: Layout) {
        let mut picture = self.picture.lock();
        let concerned = if let Some(sequence) = layout.sequence(child) {
            let Err(at) = picture.position(child, sequence) else { return };
            let contender = Contender { child: child.to_owned(), sequence };
            picture.listing.queue.insert(at, contender);
            picture.concerns_us(child)
        } else {
            let foreign = layout.is_foreign(child);
            if foreign && !picture.listing.foreign.iter().any(|other| other == child) {
                picture.listing.foreign.push(child.to_owned());
            }
            foreign
        };
        if concerned {
            self.changed.notify_waiters();
        }
    }

    fn went(&self, child: &str, layout: Layout) {
        let mut picture = self.picture.lock();
        let Some(sequence) = layout.sequence(child) else {
            picture.listing.foreign.retain(|other| other != child);
            return;
        };
        let Ok(at) = picture.position(child, sequence) else { return };
        let gone = picture.listing.queue.remove(at);
        if picture.concerns_us(child) {
            self.changed.notify_waiters();
        }
        let first = picture.listing.queue.first();
        if at == 0 && first.map(group) != Some(group(&gone)) {
            self.advanced.notify_waiters();
        }
    }

    /// After a change that is about all who wait here.
    fn tell_all(&self, change: impl FnOnce(&mut Picture)) {
        change(&mut self.picture.lock());
        self.changed.notify_waiters();
        self.advanced.notify_waiters();
    }
}

/// A task that waits on the place of a node. Dropped, it leaves.
#[derive(Debug)]
pub(super) struct Waiter {
    queue: Arc<Queue>,
    child: Arc<str>,
}

impl Waiter {
    /// Where the node stands now, and what completes when that may have changed.
    pub(super) fn look(&self) -> (Place, Pin<Box<Notified<'_>>>) {
        let mut changed = Box::pin(self.queue.changed.notified());
        // From here on no change is missed.
        changed.as_mut().enable();
        (self.queue.place(&self.child), changed)
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

impl Drop for Waiter {
    fn drop(&mut self) {
        let wanted = &mut self.queue.picture.lock().wanted;
        if let Some(at) = wanted.iter().position(|wanted| Arc::ptr_eq(wanted, &self.child)) {
            wanted.swap_remove(at);
        }
    }
}

/// Follows the queue for as long as somebody wants it; `None` when it cannot be followed.
async fn try_to_follow<S: AsRef<Client>>(
    session: Weak<S>,
    queue: &Weak<Queue>,
    lock: &str,
    layout: Layout,
) -> Option<()> {
    let mut watcher = {
        let session = session.upgrade()?;
        let client = (*session).as_ref();
        // Both are sent now, in this order: nothing happens between them unseen.
        let watching = client.watch(lock, AddWatchMode::PersistentRecursive);
        let listing = client.list_children(lock);
        let watcher = watching.await.ok()?;
        let children = listing.await.ok()?;
        queue.upgrade()?.show(layout.read(children));
        watcher
    };
    loop {
        let event = watcher.changed().await;
        let queue = queue.upgrade()?;
        let child = event.path.strip_prefix(lock).and_then(|rest| rest.strip_prefix('/'));
        match (event.event_type, child) {
            (EventType::Session, _) if event.session_state == SessionState::SyncConnected => {
                // Events are lost while there is no connection (ZOOKEEPER-4698).
                let session = session.upgrade()?;
                let children = (*session).as_ref().list_children(lock).await.ok()?;
                queue.show(layout.read(children));
            }
            (EventType::Session, _) => {
                queue.tell_all(|picture| picture.trusted = false);
                if event.session_state.is_terminated() {
                    return None;
                }
            }
            // Below a child is somebody else's lock.
            (_, Some(child)) if child.contains('/') => {}
            (EventType::NodeCreated, Some(child)) => queue.came(child, layout),
            (EventType::NodeDeleted, Some(child)) => queue.went(child, layout),
            // The lock's own node was deleted, and with it all who stood in the queue.
            (EventType::NodeDeleted, None) => return None,
            _ => {}
        }
        if queue.is_of_no_use() {
            return None;
        }
    }
}
