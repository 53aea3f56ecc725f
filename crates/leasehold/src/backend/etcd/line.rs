//! The line of one lock, as this client sees it: a log of who left it, by one watch on all
//! of its keys. Whoever waits keeps a list of the keys ahead and strikes them off.
//!
//! The watch tells of every departure in order, our own included. So at the departure of
//! the last one ahead we know our own key to be there, and need not ask.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::{Arc, Weak};

use etcd_client::{Event, EventType};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::watcher::{Listener, Watch, Watcher};
use crate::clock::Moment;

/// How many departures are remembered.
const REMEMBERED: usize = 256;
/// How often a watch is made anew that may be served by etcd's slow loop.
const MOST_ARMS: u32 = 3;

/// The keys ahead of ours, as of a revision.
#[derive(Debug, Clone, Default)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Followed {
    /// The view is up to date with the log.
    UpToDate,
    /// Our own key has gone.
    Gone,
    /// The log does not reach back to the view: read the line again.
    ReadAgain,
    /// The watch is not there yet: wait for it.
    NotYet,
    /// The watch is broken: take another line.
    Broken,
}

/// The log of one lock's line.
#[derive(Debug)]
pub(super) struct Line {
    keys: Range<String>,
    state: Mutex<State>,
    changes: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    /// Everything after this revision is in the log; `None` until the watch is there.
    since: Option<i64>,
    /// Who left, when: in the order of revisions.
    departures: VecDeque<(i64, Vec<u8>)>,
    broken: bool,
    /// The watch in use and one that is to replace it, by number.
    watches: Vec<(u32, Watch)>,
    current: u32,
    made: u32,
    /// Whether the watch in use is known to be served at once, or taken for it.
    settled: bool,
    users: usize,
    idle_since: Option<Moment>,
}

impl Line {
    /// A line and its watch.
    pub(super) fn new(keys: Range<String>, watcher: &Watcher) -> Arc<Self> {
        let changes = watch::Sender::new(0);
        let line = Arc::new(Self { keys, state: Mutex::default(), changes });
        line.arm(watcher);
        line
    }

    /// The line was read at this revision.
    ///
    /// A watch from the present revision stalls as well, if something was written between
    /// etcd's two looks at that. A read at the revision of its creation rules it out;
    /// otherwise another watch replaces it.
    pub(super) fn read_at(self: &Arc<Self>, revision: i64, watcher: &Watcher) {
        let doubtful = {
            let mut state = self.state.lock();
            let Some(since) = state.since else { return };
            let pending = state.made > state.current;
            state.settled |= revision <= since || state.made == MOST_ARMS;
            !state.settled && !pending
        };
        if doubtful {
            self.arm(watcher);
        }
    }

    fn arm(self: &Arc<Self>, watcher: &Watcher) {
        let number = {
            let mut state = self.state.lock();
            state.made += 1;
            state.made
        };
        let arm = Arc::new(Arm { line: Arc::downgrade(self), number });
        let watch = watcher.watch(self.keys.clone(), true, arm);
        self.state.lock().watches.push((number, watch));
    }

    /// Strikes off who has left since the view was made.
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

    /// Tells of every change.
    pub(super) fn changes(&self) -> watch::Receiver<u64> {
        self.changes.subscribe()
    }

    pub(super) fn is_broken(&self) -> bool {
        self.state.lock().broken
    }

    /// One more waits by it.
    pub(super) fn enter(self: Arc<Self>) -> Following {
        let mut state = self.state.lock();
        state.users += 1;
        state.idle_since = None;
        drop(state);
        Following(self)
    }

    /// Since when nobody has waited by it; `now` if that was not noted yet.
    pub(super) fn idle_since(&self, now: Moment) -> Option<Moment> {
        let mut state = self.state.lock();
        if state.users > 0 {
            return None;
        }
        Some(*state.idle_since.get_or_insert(now))
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changes.send_modify(|count| *count += 1);
    }
}

/// Somebody's use of a line.
#[derive(Debug)]
pub(super) struct Following(Arc<Line>);

impl std::ops::Deref for Following {
    type Target = Arc<Line>;

    fn deref(&self) -> &Arc<Line> {
        &self.0
    }
}

impl Drop for Following {
    fn drop(&mut self) {
        self.0.state.lock().users -= 1;
    }
}

/// One watch of a line; the first, or one that replaces another.
struct Arm {
    line: Weak<Line>,
    number: u32,
}

impl Listener for Arm {
    fn created(&self, revision: i64) {
        let Some(line) = self.line.upgrade() else { return };
        line.change(|state| {
            // A log of two watches would not be in order: it starts anew.
            state.current = self.number;
            state.since = Some(revision);
            state.departures.clear();
            state.watches.retain(|(number, _)| *number >= self.number);
        });
    }

    fn seen(&self, events: &[Event]) {
        let Some(line) = self.line.upgrade() else { return };
        line.change(|state| {
            if state.current != self.number {
                return;
            }
            // All of them at once: those of one revision belong together.
            for event in events {
                if let (EventType::Delete, Some(kv)) = (event.event_type(), event.kv()) {
                    state.departures.push_back((kv.mod_revision(), kv.key().to_vec()));
                }
            }
            while state.departures.len() > REMEMBERED
                && let Some((at, _)) = state.departures.pop_front()
            {
                state.since = state.since.map(|since| since.max(at));
            }
        });
    }

    fn broken(&self) {
        if let Some(line) = self.line.upgrade() {
            line.change(|state| state.broken = true);
        }
    }
}
