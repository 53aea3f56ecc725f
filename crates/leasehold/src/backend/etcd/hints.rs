//! What tells of a loss sooner than the next renewal: a session's own key that goes, and
//! the record of a force-release that comes.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use etcd_client::{Event, EventType};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use super::EtcdStore;
use super::session::Session;
use super::watcher::{Listener, Watch};
use crate::backend::Hint;

/// Hints on their way to the client.
#[derive(Debug)]
pub(super) struct Hints {
    sender: mpsc::UnboundedSender<Hint>,
    receiver: tokio::sync::Mutex<mpsc::UnboundedReceiver<Hint>>,
    /// The watch on all records of force-releases.
    forced: Mutex<Option<Following>>,
    /// The watches on the sessions' own keys.
    sessions: Mutex<Vec<(Weak<Session>, Following)>>,
}

#[derive(Debug)]
struct Following {
    _watch: Watch,
    broken: Arc<AtomicBool>,
}

impl Default for Hints {
    fn default() -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        let receiver = tokio::sync::Mutex::new(receiver);
        Self { sender, receiver, forced: Mutex::default(), sessions: Mutex::default() }
    }
}

impl Hints {
    pub(super) async fn next(&self) -> Hint {
        self.receiver.lock().await.recv().await.unwrap_or(Hint::All)
    }
}

impl EtcdStore {
    /// Watches the key that goes with this session.
    pub(super) fn follow_session(self: &Arc<Self>, session: &Arc<Session>) {
        let key = self.layout.session(session.id);
        let keys = Range { end: format!("{key}\0"), start: key };
        let following = self.follow(keys, Arc::downgrade(session));
        let mut sessions = self.hints.sessions.lock();
        sessions.retain(|(session, _)| session.strong_count() > 0);
        sessions.push((Arc::downgrade(session), following));
    }

    /// Watches the records of force-releases, and whatever else is not watched any more.
    /// Only for clients that have something to lose.
    pub(super) fn follow_forced(self: &Arc<Self>) {
        let broken = |following: &Following| following.broken.load(Ordering::Acquire);
        let lost: Vec<_> = {
            let mut sessions = self.hints.sessions.lock();
            sessions.retain(|(session, _)| session.strong_count() > 0);
            if sessions.is_empty() {
                *self.hints.forced.lock() = None;
                return;
            }
            sessions.extract_if(.., |(_, following)| broken(following)).collect()
        };
        for session in lost.iter().filter_map(|(session, _)| session.upgrade()) {
            if !session.has_ended() {
                self.follow_session(&session);
            }
        }
        let mut forced = self.hints.forced.lock();
        if forced.as_ref().is_none_or(broken) {
            let start = self.layout.all_forced();
            let missed = forced.is_some();
            *forced = Some(self.follow(Range { end: after(&start), start }, Weak::new()));
            if missed {
                let _ = self.hints.sender.send(Hint::All);
            }
        }
    }

    fn follow(self: &Arc<Self>, keys: Range<String>, session: Weak<Session>) -> Following {
        let broken = Arc::new(AtomicBool::new(false));
        let ear = Ear { store: Arc::downgrade(self), session, broken: broken.clone() };
        let ear = Arc::new(ear);
        Following { _watch: self.watcher.watch(keys, false, ear), broken }
    }
}

/// The first text after all that begin with this one, which ends with a slash.
fn after(prefix: &str) -> String {
    format!("{}0", &prefix[..prefix.len() - 1])
}

struct Ear {
    store: Weak<EtcdStore>,
    /// Whose key it listens to, if it is a session's.
    session: Weak<Session>,
    broken: Arc<AtomicBool>,
}

impl Listener for Ear {
    fn created(&self, _revision: i64) {}

    fn seen(&self, events: &[Event]) {
        let Some(store) = self.store.upgrade() else { return };
        for event in events {
            let Some(kv) = event.kv() else { continue };
            let forced = store.layout.forced_of(kv.key());
            let hint = match (event.event_type(), forced) {
                (EventType::Put, Some((name, token))) => {
                    let owner = store.table.lock().owner_of(&name, token.get() as i64);
                    owner.map(Hint::Lease)
                }
                // Before its time: one that nobody renewed ends what its deadlines have ended.
                (EventType::Delete, None) => {
                    let now = store.clock.now();
                    let session = self.session.upgrade();
                    session.filter(|session| session.lives_until() > now).map(|_| Hint::All)
                }
                _ => None,
            };
            if let Some(hint) = hint {
                let _ = store.hints.sender.send(hint);
            }
        }
    }

    fn broken(&self) {
        self.broken.store(true, Ordering::Release);
    }
}
