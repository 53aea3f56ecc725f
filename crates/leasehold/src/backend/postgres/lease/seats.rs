//! The waiters of this client, as the listening connection finds them: where news of a
//! grant is laid down until its waiter comes for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::super::owners::OwnerMap;
use crate::backend::Grant;
use crate::clock::Moment;
use crate::owner::Owner;

/// A seat that nobody came back to for so long was left by an acquisition that ended
/// without a word.
const ABANDONED: Duration = Duration::from_secs(600);

/// Where the waiters of one client sit.
#[derive(Debug, Default)]
pub(super) struct Seats {
    state: Mutex<State>,
    forced: Notify,
}

#[derive(Debug, Default)]
struct State {
    seats: OwnerMap<Seat>,
    /// Whether news comes in at all.
    listening: bool,
    forced: VecDeque<Owner>,
}

#[derive(Debug)]
struct Seat {
    /// Made when somebody waits for it: most do not have to.
    bell: Option<Arc<Notify>>,
    news: Option<Grant>,
    /// Something may have been missed: look.
    look: bool,
    /// The place in line was confirmed once.
    queued: bool,
    beat_at: Moment,
    free_at: Moment,
    touched: Moment,
}

impl Seat {
    fn ring(&self) {
        if let Some(bell) = &self.bell {
            bell.notify_one();
        }
    }
}

/// What a waiter does next.
#[derive(Debug)]
pub(super) enum Next {
    Granted(Grant),
    /// Look at the table.
    Look,
    /// Wait for the bell, at most until then; then look.
    Sleep(Arc<Notify>, Moment),
    /// There is no such seat.
    Gone,
}

impl Seats {
    /// Takes a seat, or keeps the one that is there.
    pub(super) fn take(&self, owner: Owner, now: Moment) {
        self.take_all(std::iter::once(owner), now);
    }

    /// Takes a seat for each.
    pub(super) fn take_all(&self, owners: impl Iterator<Item = Owner>, now: Moment) {
        let mut state = self.state.lock();
        // Nothing can be missed by one who sits before the line forms.
        let look = !state.listening;
        for owner in owners {
            let seat = state.seats.entry(owner).or_insert_with(|| Seat {
                bell: None,
                news: None,
                look,
                queued: false,
                beat_at: now,
                free_at: now,
                touched: now,
            });
            seat.touched = now;
        }
    }

    /// The place in line is confirmed, by a request sent then; the holder's lease has so
    /// many microseconds left.
    pub(super) fn queued(&self, owner: Owner, sent: Moment, left: i64) {
        if let Some(seat) = self.state.lock().seats.get_mut(&owner) {
            seat.queued = true;
            seat.beat_at = sent;
            seat.free_at = sent + Duration::from_micros(u64::try_from(left).unwrap_or(0));
            seat.touched = sent;
        }
    }

    pub(super) fn leave(&self, owner: Owner) {
        self.leave_all(std::iter::once(owner));
    }

    pub(super) fn leave_all(&self, owners: impl Iterator<Item = Owner>) {
        let mut state = self.state.lock();
        for owner in owners {
            state.seats.remove(&owner);
        }
    }

    /// The claim did not come through, and had no place before.
    pub(super) fn give_up_new(&self, owner: Owner) {
        let mut state = self.state.lock();
        if state.seats.get(&owner).is_some_and(|seat| !seat.queued) {
            state.seats.remove(&owner);
        }
    }

    /// What the waiter does now; it beats every `beat`.
    pub(super) fn next(&self, owner: Owner, now: Moment, beat: Duration) -> Next {
        let mut state = self.state.lock();
        let Some(seat) = state.seats.get_mut(&owner) else { return Next::Gone };
        seat.touched = now;
        if let Some(grant) = seat.news.take() {
            return Next::Granted(grant);
        }
        let due = (seat.beat_at + beat).min(seat.free_at);
        if std::mem::take(&mut seat.look) || due <= now {
            return Next::Look;
        }
        Next::Sleep(seat.bell.get_or_insert_default().clone(), due)
    }

    /// A lock was granted, as the server tells.
    pub(super) fn granted(&self, owner: Owner, grant: Grant) {
        if let Some(seat) = self.state.lock().seats.get_mut(&owner) {
            seat.news = Some(grant);
            seat.ring();
        }
    }

    /// From now on news comes in; what was before may have been missed.
    pub(super) fn listening(&self) {
        let mut state = self.state.lock();
        state.listening = true;
        for seat in state.seats.values_mut() {
            seat.look = true;
            seat.ring();
        }
    }

    /// News does not come in any more.
    pub(super) fn deaf(&self) {
        self.state.lock().listening = false;
    }

    pub(super) fn is_listening(&self) -> bool {
        self.state.lock().listening
    }

    /// A lease was released by force.
    pub(super) fn forced(&self, owner: Owner) {
        self.state.lock().forced.push_back(owner);
        self.forced.notify_one();
    }

    pub(super) async fn next_forced(&self) -> Owner {
        loop {
            if let Some(owner) = self.state.lock().forced.pop_front() {
                return owner;
            }
            self.forced.notified().await;
        }
    }

    pub(super) fn forget_abandoned(&self, now: Moment) {
        self.state.lock().seats.retain(|_, seat| seat.touched + ABANDONED > now);
    }
}
