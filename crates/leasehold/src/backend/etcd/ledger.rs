//! The ledger of this client: which of its owners has, wants or may have which lock, on which
//! session. Nothing in it is proof; it says which keys to look at, and which ones nobody
//! wants any more.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use etcd_client::GetOptions;

use super::queue::{View, deletion};
use super::session::Session;
use super::{EtcdStore, keys};
use crate::backend::kit::ledger;
use crate::backend::{Claim, Grant, Hold, Proof};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How long an owner keeps its tombstone, at least. A request that is answered later than that
/// would leave a key that nobody removes.
const TOMBSTONE: Duration = Duration::from_secs(120);
/// How long a claim may be under way, at least.
const ASKS_FOR: Duration = Duration::from_secs(10);
/// How long a place in the queue is kept for somebody who does not wait on it.
pub(super) const KEEPS_PLACE: Duration = Duration::from_secs(5);

/// What an owner has: a claim that is under way or whose answer was lost, a place in the queue,
/// or the lock.
#[derive(Clone)]
pub(super) struct Entry {
    pub(super) name: Name,
    pub(super) session: Arc<Session>,
    /// The create revision of its key, once it is known.
    pub(super) revision: Option<i64>,
    /// While it waits: what the queue looked like.
    pub(super) view: Option<View>,
    /// Given up when nobody has shown interest by then.
    pub(super) until: Moment,
}

impl ledger::Entry for Entry {
    fn name(&self) -> &Name {
        &self.name
    }

    fn token(&self) -> Option<Token> {
        self.revision.map(|revision| Token::new(revision as u64))
    }

    fn until(&self) -> Moment {
        self.until
    }
}

/// A session, and how many claims hang on it.
pub(super) struct InUse {
    pub(super) session: Arc<Session>,
    /// The TTL that was asked for. More than one session has it only where claims of this
    /// client meet.
    pub(super) seconds: u64,
    pub(super) claims: usize,
    /// Since when it has had no claims.
    pub(super) idle_since: Moment,
    pub(super) swept_at: Moment,
}

#[derive(Default)]
pub(super) struct Ledger {
    pub(super) claims: ledger::Ledger<Entry>,
    pub(super) sessions: Vec<InUse>,
    /// The owner of the one place that each session has in each lock's queue.
    places: HashMap<(i64, Name), Owner>,
    /// Places whose key is being deleted, whatever it may be: not to be taken meanwhile.
    clearing: HashSet<(i64, Name)>,
}

impl Ledger {
    /// A place on a live session of this TTL that has no claim on this lock; it is the owner's
    /// now. And whether the owner had none before.
    fn place(&mut self, claim: &Claim, seconds: u64, now: Moment) -> Option<(Entry, bool)> {
        if let Some(entry) = self.claims.get(claim.owner) {
            if entry.session.is_usable(now) {
                return Some((entry.clone(), false));
            }
            // Should it be alive after all, the key that is left on it is swept.
            entry.session.suspect(now);
            self.forget(claim.owner, now);
        }
        let free = |used: &&mut InUse| {
            let place = (used.session.id, claim.name.clone());
            used.seconds == seconds
                && used.session.is_usable(now)
                && !used.session.is_retired()
                && !self.places.contains_key(&place)
                && !self.clearing.contains(&place)
        };
        let used = self.sessions.iter_mut().find(free)?;
        used.claims += 1;
        let (name, session) = (claim.name.clone(), used.session.clone());
        self.places.insert((session.id, name.clone()), claim.owner);
        let until = now + claim.ttl.max(ASKS_FOR);
        let entry = Entry { name, session, revision: None, view: None, until };
        self.claims.insert(claim.owner, entry.clone(), now);
        Some((entry, true))
    }

    fn add_session(&mut self, seconds: u64, session: Arc<Session>) {
        let (idle_since, swept_at) = (session.proved_at(), Moment::from_nanos(0));
        self.sessions.push(InUse { session, seconds, claims: 0, idle_since, swept_at });
    }

    /// The lock is the claim's; unless it was given up meanwhile.
    #[must_use]
    pub(super) fn grant(
        &mut self,
        claim: &Claim,
        session: &Session,
        revision: i64,
    ) -> Option<Grant> {
        let proof = Proof { at: session.proved_at(), valid_for: claim.ttl };
        let granted = self.advance(claim.owner, None, revision, proof.at + claim.ttl);
        granted.then_some(Grant { token: Token::new(revision as u64), proof })
    }

    /// The claim is in the queue, which looked like this; unless it was given up meanwhile.
    #[must_use]
    pub(super) fn enqueue(&mut self, owner: Owner, view: View, revision: i64, now: Moment) -> bool {
        self.advance(owner, Some(view), revision, now + KEEPS_PLACE)
    }

    fn advance(&mut self, owner: Owner, view: Option<View>, revision: i64, until: Moment) -> bool {
        let change = |entry: &mut Entry| {
            (entry.view, entry.revision, entry.until) = (view, Some(revision), until);
        };
        self.claims.update(owner, change).is_some()
    }

    /// It is wanted until then at least. Whether it is still there.
    #[must_use]
    pub(super) fn keep(&mut self, owner: Owner, until: Moment) -> bool {
        self.claims.update(owner, |entry| entry.until = entry.until.max(until)).is_some()
    }

    pub(super) fn forget(&mut self, owner: Owner, now: Moment) -> Option<Entry> {
        let entry = self.claims.remove(owner)?;
        if let Some(used) =
            self.sessions.iter_mut().find(|used| used.session.id == entry.session.id)
        {
            used.claims -= 1;
            used.idle_since = now;
        }
        self.places.remove(&(entry.session.id, entry.name.clone()));
        Some(entry)
    }

    /// Takes out the claims that were to be wanted until now, and were not.
    pub(super) fn take_overdue(&mut self, now: Moment) -> Vec<(Owner, Entry)> {
        let overdue = self.claims.overdue(now).into_iter();
        overdue.filter_map(|owner| Some((owner, self.forget(owner, now)?))).collect()
    }

    /// Nobody takes this place from now on, even when its owner is forgotten. Whether it is
    /// still the place of this claim, and not being cleared already: in one look, because
    /// an owner that was forgotten meanwhile may have a successor there.
    pub(super) fn clear(&mut self, session: i64, hold: &Hold) -> bool {
        let place = (session, hold.name.clone());
        let its_own =
            self.places.get(&place) == Some(&hold.owner) && self.claims.find(hold).is_some();
        its_own && self.clearing.insert(place)
    }

    /// It may be taken again.
    pub(super) fn cleared(&mut self, session: i64, name: &Name) {
        self.clearing.remove(&(session, name.clone()));
    }

    /// Whether somebody of this client may have put this lock's key on this session.
    pub(super) fn has_place(&self, session: i64, name: &Name) -> bool {
        self.places.contains_key(&(session, name.clone()))
    }

    /// Late requests of this owner must not take effect.
    pub(super) fn add_tombstone(&mut self, owner: Owner, ttl: Duration, now: Moment) {
        self.claims.tombstones.add(owner, ttl.max(TOMBSTONE), now);
    }

    pub(super) fn has_tombstone(&self, owner: Owner, now: Moment) -> bool {
        self.claims.tombstones.has(owner, now)
    }
}

impl EtcdStore {
    /// A place for this claim, on a session in which no other claim of ours is on the same lock.
    /// And whether its owner had none before.
    pub(super) async fn place(self: &Arc<Self>, claim: &Claim) -> Result<(Entry, bool)> {
        let seconds = claim.ttl.as_secs() + u64::from(claim.ttl.subsec_nanos() > 0);
        let present = || self.ledger.lock().place(claim, seconds, self.clock.now());
        if let Some(place) = present() {
            return Ok(place);
        }
        let _one_at_a_time = self.opening.lock().await;
        if let Some(place) = present() {
            return Ok(place);
        }
        let session = Session::open(self, seconds).await.map_err(|error| {
            // Nothing of the claim itself was sent: without a session it was not applied.
            Error::new(error.kind().clone(), error.to_string()).not_applied().caused_by(error)
        })?;
        let mut ledger = self.ledger.lock();
        ledger.add_session(seconds, session);
        ledger.place(claim, seconds, self.clock.now()).ok_or_else(|| {
            let message = "etcd took longer to open a session than the TTL lasts; use a longer one";
            Error::new(ErrorKind::Unavailable, message).not_applied()
        })
    }

    /// Removes the owner's key, wherever it has come.
    pub(super) async fn withdraw(&self, entry: &Entry, owner: Owner) -> Result<()> {
        let key = self.layout.lock(&entry.name, entry.session.id);
        if let Some(revision) = entry.revision {
            return self.remove(key, revision).await;
        }
        let found = self.endpoints.get(&*key, GetOptions::new()).await?;
        match found.kvs().first().filter(|kv| keys::owner(kv.value()) == Some(owner)) {
            Some(kv) => self.remove(key, kv.create_revision()).await,
            None => Ok(()),
        }
    }

    /// Deletes this key, if it is the one that was created at this revision.
    pub(super) async fn remove(&self, key: String, revision: i64) -> Result<()> {
        self.endpoints.txn(deletion(key, revision)).await.map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Holder;

    const SECONDS: u64 = 30;
    const TTL: Duration = Duration::from_secs(SECONDS);

    /// A ledger with one session, and a claim of it that has its lock.
    fn held(revision: i64) -> (Ledger, Hold) {
        let mut ledger = Ledger::default();
        ledger.add_session(SECONDS, Session::new(7, TTL, now()).0);
        let hold = take(&mut ledger, revision);
        (ledger, hold)
    }

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000)
    }

    fn claim() -> Claim {
        Claim::new(Name::new("a").unwrap(), TTL, Arc::new(Holder::new("host", 1, "test")))
    }

    fn take(ledger: &mut Ledger, revision: i64) -> Hold {
        let claim = claim();
        let (entry, fresh) = ledger.place(&claim, SECONDS, now()).expect("the place is free");
        assert!(fresh && ledger.grant(&claim, &entry.session, revision).is_some());
        claim.hold(Token::new(revision as u64))
    }

    fn place_is_free(ledger: &mut Ledger) -> bool {
        ledger.place(&claim(), SECONDS, now()).is_some()
    }

    /// A plain deletion would take the key of whoever is there by now (etcd#22082).
    #[test]
    fn a_late_release_does_not_clear_its_successors_place() {
        let (mut ledger, late) = held(5);
        ledger.forget(late.owner, now());
        let successor = take(&mut ledger, 9);
        assert!(!ledger.clear(7, &late));
        assert!(ledger.clear(7, &successor));
        assert!(!ledger.clear(7, &successor), "it is being cleared already");
    }

    #[test]
    fn nobody_gets_a_place_that_is_being_cleared() {
        let (mut ledger, hold) = held(5);
        assert!(ledger.clear(7, &hold));
        ledger.forget(hold.owner, now());
        assert!(!place_is_free(&mut ledger));
        ledger.cleared(7, &hold.name);
        assert!(place_is_free(&mut ledger));
    }

    #[test]
    fn a_retired_session_takes_nobody_new() {
        let (mut ledger, hold) = held(5);
        ledger.sessions[0].session.retire();
        ledger.forget(hold.owner, now());
        assert!(!place_is_free(&mut ledger));
    }
}
