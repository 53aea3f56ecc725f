//! The waiters of this client, as the listening connection finds them: where news of a
//! grant is kept until its waiter comes for it.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::Grant;
use crate::backend::kit::hints::Hints;
use crate::backend::kit::owner_map::OwnerMap;
use crate::clock::Moment;
use crate::owner::Owner;

/// A waiter that nobody came back to for so long was left by an acquisition that ended
/// without a word.
const ABANDONED: Duration = Duration::from_secs(600);

#[derive(Debug, Default)]
pub(super) struct Waiters {
    state: Mutex<State>,
    /// Of leases that were released by force.
    pub(super) hints: Hints,
}

#[derive(Debug, Default)]
struct State {
    waiters: OwnerMap<Waiter>,
    /// Whether news comes in at all.
    listening: bool,
}

#[derive(Debug)]
struct Waiter {
    bell: Arc<Notify>,
    news: Option<Grant>,
    /// Something may have been missed: look.
    look: bool,
    /// The place in the queue was confirmed once.
    queued: bool,
    heartbeat_at: Moment,
    free_at: Moment,
    touched: Moment,
}

/// What a waiter does next.
#[derive(Debug)]
pub(super) enum Next {
    Granted(Grant),
    /// Look at the table.
    Look,
    /// Wait for the bell, at most until then; then look.
    Sleep(Arc<Notify>, Moment),
    /// There is no such waiter.
    Gone,
}

impl Waiters {
    /// Registers each of these, or keeps it as it is.
    pub(super) fn register(&self, owners: impl IntoIterator<Item = Owner>, now: Moment) {
        let mut state = self.state.lock();
        // One that is registered before it is in the queue can miss nothing.
        let look = !state.listening;
        for owner in owners {
            let new = || Waiter {
                bell: Arc::default(),
                news: None,
                look,
                queued: false,
                heartbeat_at: now,
                free_at: now,
                touched: now,
            };
            state.waiters.entry(owner).or_insert_with(new).touched = now;
        }
    }

    /// The place in the queue is confirmed, by a request sent then; the holder's lease has so
    /// much time left.
    pub(super) fn queued(&self, owner: Owner, sent: Moment, left: Duration) {
        if let Some(waiter) = self.state.lock().waiters.get_mut(&owner) {
            waiter.queued = true;
            (waiter.heartbeat_at, waiter.touched) = (sent, sent);
            waiter.free_at = sent + left;
        }
    }

    pub(super) fn forget(&self, owners: impl IntoIterator<Item = Owner>) {
        let mut state = self.state.lock();
        for owner in owners {
            state.waiters.remove(&owner);
        }
    }

    /// Forgets those that had no place before: their claims were not applied.
    pub(super) fn forget_new(&self, owners: impl IntoIterator<Item = Owner>) {
        let waiters = &mut self.state.lock().waiters;
        for owner in owners {
            if waiters.get(&owner).is_some_and(|waiter| !waiter.queued) {
                waiters.remove(&owner);
            }
        }
    }

    pub(super) fn forget_abandoned(&self, now: Moment) {
        self.state.lock().waiters.retain(|_, waiter| waiter.touched + ABANDONED > now);
    }

    /// What the waiter does now, with a heartbeat this often.
    pub(super) fn next(&self, owner: Owner, now: Moment, every: Duration) -> Next {
        let mut state = self.state.lock();
        let Some(waiter) = state.waiters.get_mut(&owner) else { return Next::Gone };
        waiter.touched = now;
        if let Some(grant) = waiter.news.take() {
            return Next::Granted(grant);
        }
        let due = (waiter.heartbeat_at + every).min(waiter.free_at);
        if std::mem::take(&mut waiter.look) || due <= now {
            return Next::Look;
        }
        Next::Sleep(waiter.bell.clone(), due)
    }

    /// A lock was granted, as the server says.
    pub(super) fn granted(&self, owner: Owner, grant: Grant) {
        if let Some(waiter) = self.state.lock().waiters.get_mut(&owner) {
            waiter.news = Some(grant);
            waiter.bell.notify_one();
        }
    }

    /// From now on news comes in, or does not. What was before may have been missed.
    pub(super) fn set_listening(&self, listening: bool) {
        let mut state = self.state.lock();
        state.listening = listening;
        if listening {
            for waiter in state.waiters.values_mut() {
                waiter.look = true;
                waiter.bell.notify_one();
            }
        }
    }

    pub(super) fn is_listening(&self) -> bool {
        self.state.lock().listening
    }
}
