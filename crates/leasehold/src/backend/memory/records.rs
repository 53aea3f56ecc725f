//! The records beside the locks, and who watches them.

use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::{Change, Changes, LockId, Record, Version, Watched};
use crate::clock::Moment;
use crate::error::Result;

/// How many changes a slow watcher may leave unread before it is told of a gap instead.
const BACKLOG: usize = 1024;

#[derive(Debug, Default)]
pub(super) struct Records {
    records: HashMap<LockId, Kept>,
    /// Of the last write, of whatever record: so one that lapsed may be forgotten.
    version: u64,
    watchers: Vec<Weak<Watcher>>,
}

#[derive(Debug)]
struct Kept {
    record: Record,
    until: Moment,
}

#[derive(Debug)]
struct Watcher {
    what: Watched,
    unread: Mutex<VecDeque<Change>>,
    bell: Arc<Notify>,
}

/// A watcher's end of its changes.
#[derive(Debug)]
pub(super) struct Stream(Arc<Watcher>);

impl Records {
    pub(super) fn get(&self, lock: &LockId, now: Moment) -> Option<&Record> {
        self.records.get(lock).filter(|kept| kept.until > now).map(|kept| &kept.record)
    }

    pub(super) fn next_version(&mut self) -> Version {
        self.version += 1;
        Version(self.version)
    }

    /// Keeps the record, and tells those who watch: whose bells are to be rung.
    pub(super) fn put(
        &mut self,
        lock: LockId,
        record: Record,
        keep: Option<Duration>,
        now: Moment,
    ) -> Vec<Arc<Notify>> {
        let mut bells = Vec::new();
        self.watchers.retain(|watcher| {
            let Some(watcher) = watcher.upgrade() else { return false };
            if watcher.what.covers(&lock) {
                let (lock, record) = (lock.clone(), record.clone());
                watcher.tell(Change::Written { lock, record, sampled: false });
                bells.push(watcher.bell.clone());
            }
            true
        });
        let until = keep.map_or(Moment::NEVER, |keep| now + keep);
        self.records.insert(lock, Kept { record, until });
        bells
    }

    pub(super) fn watch(&mut self, what: Watched) -> Stream {
        let watcher = Watcher { what, unread: Mutex::default(), bell: Arc::default() };
        let watcher = Arc::new(watcher);
        self.watchers.push(Arc::downgrade(&watcher));
        Stream(watcher)
    }

    pub(super) fn len(&self) -> usize {
        self.records.len()
    }

    /// Forgets the records that nobody has written for as long as they were to be kept.
    pub(super) fn sweep(&mut self, now: Moment) {
        self.records.retain(|_, kept| kept.until > now);
    }
}

impl Watcher {
    fn tell(&self, change: Change) {
        let mut unread = self.unread.lock();
        if unread.len() == BACKLOG {
            unread.clear();
            unread.push_back(Change::Gap);
        }
        unread.push_back(change);
    }
}

impl Changes for Stream {
    fn next(&mut self) -> Pin<Box<dyn Future<Output = Result<Change>> + Send + '_>> {
        Box::pin(async {
            loop {
                // Not in the loop's head, which would keep the guard.
                let change = self.0.unread.lock().pop_front();
                match change {
                    Some(change) => return Ok(change),
                    // A ring between the look and this line is kept by the bell.
                    None => self.0.bell.notified().await,
                }
            }
        })
    }
}
