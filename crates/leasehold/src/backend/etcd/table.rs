//! The client's own table: which of its owners has, wants or may have which lock, on which
//! session. Nothing in it is proof; it says which keys to look at, and which ones nobody
//! wants any more.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::line::View;
use super::session::Session;
use crate::backend::{Claim, Hold};
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::Owner;

/// How long an owner stays barred, at least.
const BARRED_FOR: Duration = Duration::from_secs(120);

/// How long an owner is not looked at, at most.
const LOOK: Duration = Duration::from_secs(10);
/// How long a claim may be under way, at least.
const ASKS_FOR: Duration = Duration::from_secs(10);

/// What an owner has.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: Name,
    pub(super) session: Arc<Session>,
    pub(super) stage: Stage,
    /// The create revision of its key, once it is known.
    pub(super) revision: Option<i64>,
    /// Given up when nobody has shown interest by then.
    pub(super) until: Moment,
    /// When to look at it next: not long after it has gone, so that nothing piles up.
    look: Moment,
}

/// How far an owner has come.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// A claim is under way, or its answer was lost.
    Asked,
    /// In line, and what the line looked like.
    Waiting(View),
    Held,
}

#[derive(Debug, Default)]
pub(super) struct Table {
    owners: HashMap<Owner, Entry>,
    /// Who has the one place that each session has in each lock's line.
    places: HashMap<(i64, Name), Owner>,
    /// Places whose key is being deleted, whatever it may be: not to be taken meanwhile.
    clearing: HashSet<(i64, Name)>,
    /// By TTL in seconds. More than one only where claims of this client meet.
    sessions: HashMap<u64, Vec<Arc<Session>>>,
    /// Owners whose late requests must not take effect, and until when.
    barred: HashMap<Owner, Moment>,
    /// When to look at whom. An item that its entry does not know of is void.
    due: BinaryHeap<Reverse<(Moment, Owner)>>,
}

impl Table {
    pub(super) fn get(&self, owner: Owner) -> Option<&Entry> {
        self.owners.get(&owner)
    }

    /// A live session of this TTL that has no claim on this lock; it is the owner's now.
    /// And whether the owner had none before.
    pub(super) fn seat(
        &mut self,
        claim: &Claim,
        seconds: u64,
        now: Moment,
    ) -> Option<(Entry, bool)> {
        if let Some(entry) = self.owners.get(&claim.owner) {
            if entry.session.is_usable(now) {
                return Some((entry.clone(), false));
            }
            // Should it be alive after all, the key that is left on it is swept.
            entry.session.suspect(now);
            self.forget(claim.owner, now);
        }
        let sessions = self.sessions.get(&seconds)?;
        let free = |session: &&Arc<Session>| {
            let place = (session.id, claim.name.clone());
            session.is_usable(now)
                && !session.is_retired()
                && !self.places.contains_key(&place)
                && !self.clearing.contains(&place)
        };
        let session = sessions.iter().find(free)?.clone();
        session.claims.fetch_add(1, Ordering::AcqRel);
        self.places.insert((session.id, claim.name.clone()), claim.owner);
        let until = now + claim.ttl.max(ASKS_FOR);
        let look = until.min(now + LOOK);
        let (name, stage) = (claim.name.clone(), Stage::Asked);
        let entry = Entry { name, session, stage, revision: None, until, look };
        self.owners.insert(claim.owner, entry.clone());
        self.due.push(Reverse((look, claim.owner)));
        Some((entry, true))
    }

    pub(super) fn add_session(&mut self, seconds: u64, session: Arc<Session>) {
        let sessions = self.sessions.entry(seconds).or_default();
        sessions.retain(|session| !session.has_ended());
        sessions.push(session);
    }

    pub(super) fn drop_session(&mut self, id: i64) {
        self.sessions.retain(|_, sessions| {
            sessions.retain(|session| session.id != id);
            !sessions.is_empty()
        });
    }

    pub(super) fn sessions(&self) -> Vec<Arc<Session>> {
        self.sessions.values().flatten().cloned().collect()
    }

    /// The claim is in line, or has the lock; unless it was given up meanwhile.
    #[must_use]
    pub(super) fn advance(
        &mut self,
        owner: Owner,
        stage: Stage,
        revision: i64,
        until: Moment,
    ) -> bool {
        let Some(entry) = self.owners.get_mut(&owner) else { return false };
        match (entry.stage.waits(), stage.waits()) {
            (false, true) => _ = entry.session.waiting.fetch_add(1, Ordering::AcqRel),
            (true, false) => _ = entry.session.waiting.fetch_sub(1, Ordering::AcqRel),
            _ => {}
        }
        entry.stage = stage;
        entry.revision = Some(revision);
        entry.until = until;
        if until < entry.look {
            entry.look = until;
            self.due.push(Reverse((until, owner)));
        }
        true
    }

    /// It is wanted until then at least. Whether it is still there.
    pub(super) fn keep(&mut self, owner: Owner, until: Moment) -> bool {
        let entry = self.owners.get_mut(&owner);
        entry.map(|entry| entry.until = entry.until.max(until)).is_some()
    }

    pub(super) fn forget(&mut self, owner: Owner, now: Moment) -> Option<Entry> {
        let entry = self.owners.remove(&owner)?;
        if entry.stage.waits() {
            entry.session.waiting.fetch_sub(1, Ordering::AcqRel);
        }
        entry.session.claims.fetch_sub(1, Ordering::AcqRel);
        entry.session.idle_since.store(now.as_nanos(), Ordering::Release);
        self.places.remove(&(entry.session.id, entry.name.clone()));
        Some(entry)
    }

    /// Nobody takes this place from now on, even when its owner is forgotten. Whether it is
    /// still the place of this claim, and not being cleared already: in one look, because
    /// whoever was forgotten meanwhile may have a successor there.
    pub(super) fn clear(&mut self, session: i64, hold: &Hold) -> bool {
        let place = (session, hold.name.clone());
        let revision = Some(hold.token.get() as i64);
        let its_own = self.places.get(&place) == Some(&hold.owner)
            && self.owners.get(&hold.owner).is_some_and(|entry| entry.revision == revision);
        its_own && self.clearing.insert(place)
    }

    /// It may be taken again.
    pub(super) fn cleared(&mut self, session: i64, name: &Name) {
        self.clearing.remove(&(session, name.clone()));
    }

    pub(super) fn bar(&mut self, owner: Owner, ttl: Duration, now: Moment) {
        self.barred.insert(owner, now + BARRED_FOR.max(ttl));
    }

    pub(super) fn is_barred(&self, owner: Owner, now: Moment) -> bool {
        self.barred.get(&owner).is_some_and(|until| *until > now)
    }

    /// Whose claim with this token on this lock is ours.
    pub(super) fn owner_of(&self, name: &Name, revision: i64) -> Option<Owner> {
        let of = |session: &Arc<Session>| self.places.get(&(session.id, name.clone())).copied();
        let owners = self.sessions.values().flatten().filter_map(of);
        owners.into_iter().find(|owner| {
            self.owners.get(owner).is_some_and(|entry| entry.revision == Some(revision))
        })
    }

    /// Whether somebody of this client may have put this lock's key on this session.
    pub(super) fn has_place(&self, session: i64, name: &Name) -> bool {
        self.places.contains_key(&(session, name.clone()))
    }

    /// Takes out who was to be wanted until now, and was not.
    pub(super) fn take_lapsed(&mut self, now: Moment) -> Vec<(Owner, Entry)> {
        let mut lapsed = Vec::new();
        while self.due.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            let Some(Reverse((at, owner))) = self.due.pop() else { break };
            let Some(entry) = self.owners.get_mut(&owner).filter(|entry| entry.look == at) else {
                continue;
            };
            if entry.until > now {
                entry.look = entry.until.min(now + LOOK);
                self.due.push(Reverse((entry.look, owner)));
            } else {
                lapsed.extend(self.forget(owner, now).map(|entry| (owner, entry)));
            }
        }
        self.barred.retain(|_, until| *until > now);
        lapsed
    }
}

impl Stage {
    fn waits(&self) -> bool {
        matches!(self, Self::Waiting(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::holder::Holder;
    use crate::token::Token;

    const SECONDS: u64 = 30;
    const TTL: Duration = Duration::from_secs(SECONDS);

    /// A table with one session, and a claim of it that has its lock.
    fn held(revision: i64) -> (Table, Hold) {
        let mut table = Table::default();
        table.add_session(SECONDS, Session::unkept(7, TTL, now()));
        let hold = take(&mut table, revision);
        (table, hold)
    }

    fn now() -> Moment {
        Moment::from_nanos(1_000_000_000)
    }

    fn claim() -> Claim {
        Claim::new(Name::new("a").unwrap(), TTL, Arc::new(Holder::new("host", 1, "test")))
    }

    fn take(table: &mut Table, revision: i64) -> Hold {
        let claim = claim();
        let (_, fresh) = table.seat(&claim, SECONDS, now()).expect("the place is free");
        assert!(fresh && table.advance(claim.owner, Stage::Held, revision, now() + TTL));
        claim.hold(Token::new(revision as u64))
    }

    fn place_is_free(table: &mut Table) -> bool {
        table.seat(&claim(), SECONDS, now()).is_some()
    }

    /// A plain deletion would take the key of whoever is there by now (etcd#22082).
    #[test]
    fn a_late_release_does_not_clear_its_successors_place() {
        let (mut table, late) = held(5);
        table.forget(late.owner, now());
        let successor = take(&mut table, 9);
        assert!(!table.clear(7, &late));
        assert!(table.clear(7, &successor));
        assert!(!table.clear(7, &successor), "it is being cleared already");
    }

    #[test]
    fn nobody_gets_a_place_that_is_being_cleared() {
        let (mut table, hold) = held(5);
        assert!(table.clear(7, &hold));
        table.forget(hold.owner, now());
        assert!(!place_is_free(&mut table));
        table.cleared(7, &hold.name);
        assert!(place_is_free(&mut table));
    }

    #[test]
    fn a_retired_session_takes_nobody_new() {
        let (mut table, hold) = held(5);
        table.sessions()[0].retire();
        table.forget(hold.owner, now());
        assert!(!place_is_free(&mut table));
    }
}
