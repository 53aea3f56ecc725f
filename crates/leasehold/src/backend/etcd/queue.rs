//! The queue of one lock: read, and as this client sees it, by a log of the departures. One
//! watch on all of its keys keeps the log; each waiter has a list of the keys ahead of its own
//! and strikes them off.
//!
//! The watch tells of every departure in order, our own included. So at the departure of
//! the last one ahead we know our own key to be there, and need not ask.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use etcd_client::{
    Compare, CompareOp, EventType, GetOptions, GetResponse, KeyValue, ResponseHeader, SortOrder,
    SortTarget, Txn, TxnOp, TxnOpResponse,
};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::EtcdStore;
use super::error::broken_reply;
use super::watcher::{Heard, Watch, Watcher};
use crate::clock::Moment;
use crate::error::Result;
use crate::name::Name;

/// With at most this many ahead a waiter follows the whole queue.
pub(super) const NEAR: usize = 16;
/// How many departures are remembered.
const REMEMBERED: usize = 256;
/// How often a watch is made anew that may be served by etcd's slow loop.
const MOST_ARMS: u32 = 3;
/// How long a watch is kept for the next waiter.
const LINGERS: Duration = Duration::from_secs(5);

/// The keys ahead of ours, as of a revision.
#[derive(Clone)]
pub(super) struct View {
    /// Each with its create revision.
    pub(super) ahead: Vec<(i64, Vec<u8>)>,
    pub(super) as_of: i64,
    /// Whether these are all.
    pub(super) complete: bool,
    /// How many keys there are in all, those behind us included.
    pub(super) crowd: i64,
}

/// What following the log says.
pub(super) enum Followed {
    /// The view is up to date with the log.
    UpToDate,
    /// Our own key has gone.
    Gone,
    /// The log does not reach back to the view: read the queue again.
    ReadAgain,
    /// The watch is not there yet: wait for it.
    NotYet,
    /// The watch is broken: take another log.
    Broken,
}

/// The log of one lock's queue.
pub(super) struct Queue {
    keys: Range<String>,
    state: Mutex<State>,
    changes: watch::Sender<()>,
}

#[derive(Default)]
struct State {
    /// Everything after this revision is in the log; `None` until the watch is there.
    since: Option<i64>,
    /// Each key that left, and when: in the order of revisions.
    departures: VecDeque<(i64, Vec<u8>)>,
    broken: bool,
    /// The watch in use and one that is to replace it, by number.
    watches: Vec<(u32, Watch)>,
    current: u32,
    made: u32,
    /// Whether the watch in use is known to be served at once, or taken for it.
    settled: bool,
    /// When somebody waited by it the last time.
    used_at: Option<Moment>,
}

impl EtcdStore {
    /// The log of a lock's queue, shared by this client's waiters; and all changes from now on.
    pub(super) fn queue(&self, name: &Name) -> (Arc<Queue>, watch::Receiver<()>) {
        let mut queues = self.queues.lock();
        let usable = queues.get(name).filter(|queue| !queue.state.lock().broken).cloned();
        let queue = usable.unwrap_or_else(|| {
            let queue = Queue::new(self.layout.queue(name), &self.watcher);
            queues.insert(name.clone(), queue.clone());
            queue
        });
        queue.state.lock().used_at = Some(self.clock.now());
        let changes = queue.changes.subscribe();
        (queue, changes)
    }

    /// The claims on a lock, first come first, and the revision they were read at.
    pub(super) async fn claims(&self, name: &Name) -> Result<(Vec<KeyValue>, i64)> {
        let queue = self.layout.queue(name);
        let mut read = self.endpoints.get(queue.start, by_age(queue.end)).await?;
        Ok((self.claims_among(name, read.take_kvs()), revision(read.header())))
    }

    /// The claims on this lock among these keys.
    pub(super) fn claims_among(&self, name: &Name, mut keys: Vec<KeyValue>) -> Vec<KeyValue> {
        keys.retain(|kv| self.layout.is_claim(name, kv.key(), kv.lease()));
        keys
    }

    /// Looks at several places as of one revision, which comes with them.
    pub(super) async fn look<const N: usize>(
        &self,
        looks: [TxnOp; N],
    ) -> Result<([GetResponse; N], i64)> {
        let response = self.endpoints.txn(Txn::new().and_then(looks)).await?;
        let seen = response.op_responses().into_iter().map(|part| match part {
            TxnOpResponse::Get(get) => Ok(get),
            _ => Err(broken_reply()),
        });
        let seen = seen.collect::<Result<Vec<_>>>()?.try_into().map_err(|_| broken_reply())?;
        Ok((seen, revision(response.header())))
    }
}

/// All keys up to this one, first come first.
pub(super) fn by_age(end: String) -> GetOptions {
    GetOptions::new().with_range(end).with_sort(SortTarget::Create, SortOrder::Ascend)
}

/// Just this key, without its value.
pub(super) fn key_alone(key: impl Into<Vec<u8>>) -> TxnOp {
    TxnOp::get(key, Some(GetOptions::new().with_keys_only()))
}

/// When the key that was looked for was created, if it is there.
pub(super) fn created(seen: &GetResponse) -> Option<i64> {
    seen.kvs().first().map(KeyValue::create_revision)
}

/// Whether this key is the one that was created at this revision.
pub(super) fn is_that_of(key: impl Into<Vec<u8>>, revision: i64) -> Compare {
    Compare::create_revision(key, CompareOp::Equal, revision)
}

/// Deletes this key, if it is the one that was created at this revision.
pub(super) fn deletion(key: String, revision: i64) -> Txn {
    Txn::new().when([is_that_of(&*key, revision)]).and_then([TxnOp::delete(key, None)])
}

/// The claims that came before this revision.
pub(super) fn ahead_of(claims: &[KeyValue], revision: i64) -> Vec<(i64, Vec<u8>)> {
    let before = claims.iter().filter(|kv| kv.create_revision() < revision);
    before.map(|kv| (kv.create_revision(), kv.key().to_vec())).collect()
}

pub(super) fn revision(header: Option<&ResponseHeader>) -> i64 {
    header.map_or(0, ResponseHeader::revision)
}

impl Queue {
    fn new(keys: Range<String>, watcher: &Watcher) -> Arc<Self> {
        let (state, changes) = (Mutex::default(), watch::Sender::new(()));
        let queue = Arc::new(Self { keys, state, changes });
        queue.arm(watcher);
        queue
    }

    /// The queue was read at this revision.
    ///
    /// A watch from the present revision stalls as well, if something was written between
    /// etcd's two looks at that. A read at the revision of its creation rules it out;
    /// otherwise another watch replaces it.
    pub(super) fn read_at(self: &Arc<Self>, revision: i64, watcher: &Watcher) {
        let mut state = self.state.lock();
        let Some(since) = state.since else { return };
        state.settled |= revision <= since || state.made == MOST_ARMS;
        if !state.settled && state.made == state.current {
            drop(state);
            self.arm(watcher);
        }
    }

    fn arm(self: &Arc<Self>, watcher: &Watcher) {
        let number = {
            let mut state = self.state.lock();
            state.made += 1;
            state.made
        };
        let queue = Arc::downgrade(self);
        let watch = watcher.watch(self.keys.clone(), true, move |heard| {
            if let Some(queue) = queue.upgrade() {
                queue.state.lock().hear(number, heard);
                queue.changes.send_replace(());
            }
        });
        self.state.lock().watches.push((number, watch));
    }

    /// Strikes off the keys that have left since the view was made.
    pub(super) fn follow(&self, view: &mut View, own: &[u8], revision: i64) -> Followed {
        let state = self.state.lock();
        if state.broken {
            return Followed::Broken;
        }
        let Some(since) = state.since else { return Followed::NotYet };
        if since > view.as_of || !view.complete {
            return Followed::ReadAgain;
        }
        let first = state.departures.partition_point(|(at, _)| *at <= view.as_of);
        for (at, key) in state.departures.iter().skip(first) {
            if key == own && *at > revision {
                return Followed::Gone;
            }
            view.ahead.retain(|(created, ahead)| ahead != key || created >= at);
            view.as_of = *at;
        }
        Followed::UpToDate
    }

    /// Whether somebody waits by it, or did just now.
    pub(super) fn is_wanted(self: &Arc<Self>, now: Moment) -> bool {
        let mut state = self.state.lock();
        // The store has one of them.
        if Arc::strong_count(self) > 1 {
            state.used_at = Some(now);
        }
        !state.broken && state.used_at.is_some_and(|used_at| used_at.until(now) < LINGERS)
    }
}

impl State {
    /// The first watch, or one that replaces another, tells this.
    fn hear(&mut self, watch: u32, heard: Heard<'_>) {
        match heard {
            Heard::Created(revision) => {
                // A log of two watches would not be in order: it starts anew.
                self.current = watch;
                self.since = Some(revision);
                self.departures.clear();
                self.watches.retain(|(number, _)| *number >= watch);
            }
            Heard::Events(events) if watch == self.current => {
                // All of them at once: those of one revision belong together.
                for event in events {
                    if let (EventType::Delete, Some(kv)) = (event.event_type(), event.kv()) {
                        self.departures.push_back((kv.mod_revision(), kv.key().to_vec()));
                    }
                }
                while self.departures.len() > REMEMBERED
                    && let Some((at, _)) = self.departures.pop_front()
                {
                    self.since = self.since.map(|since| since.max(at));
                }
            }
            Heard::Events(_) => {}
            Heard::Broken => self.broken = true,
        }
    }
}
