//! The claims of this client, from the first attempt to the end of the lease.
//!
//! Every attempt goes out under an owner of its own (the claim's, and a number that is never
//! used again). Whether an attempt counts is decided here and nowhere else: one that was
//! given up is never taken up again, whatever its nodes answer later.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::Claim;
use crate::backend::kit::owner_map::OwnerMap;
use crate::backend::kit::tombstone;
use crate::clock::Moment;
use crate::owner::Owner;
use crate::token::Token;

/// How many entries there may be before those that ended are looked for.
const SWEEP_AT: usize = 1024;

/// All claims of a client.
#[derive(Debug, Default)]
pub(super) struct Ledger(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    entries: OwnerMap<Entry>,
    sweep_at: usize,
}

/// One claim.
#[derive(Debug)]
struct Entry {
    stage: Stage,
    /// When it may be forgotten.
    until: Moment,
    bell: Arc<Notify>,
    /// The nodes that told of a release since the last attempt.
    woken: u64,
    /// How often its votes were split in a row.
    splits: u32,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Stage {
    /// This attempt is being voted on.
    Voting(String),
    /// It waits for its bell, or for this moment.
    Waiting(Moment),
    /// It has the lock.
    Granted(Token),
    /// It was given up: its tombstone.
    GivenUp,
}

/// Whether a claim may be voted on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Under this owner.
    Attempt(String),
    /// It has the lock already, as far as we know.
    Granted(Token),
    /// It was given up.
    GivenUp,
}

impl Ledger {
    /// Begins an attempt.
    pub(super) fn begin(&self, claim: &Claim, now: Moment) -> Admission {
        let mut table = self.0.lock();
        table.sweep(now);
        let until = now + claim.ttl + tombstone::term(claim.ttl);
        let new = || Entry::new(Stage::Waiting(now), until, Arc::default());
        let entry = table.entries.entry(claim.owner).or_insert_with(new);
        match entry.stage {
            Stage::GivenUp => Admission::GivenUp,
            Stage::Granted(token) => Admission::Granted(token),
            Stage::Voting(_) | Stage::Waiting(_) => {
                let attempt = attempt_of(claim.owner);
                entry.stage = Stage::Voting(attempt.clone());
                entry.until = until;
                entry.woken = 0;
                Admission::Attempt(attempt)
            }
        }
    }

    /// The attempt succeeded; whether it still counts.
    pub(super) fn grant(&self, owner: Owner, attempt: &str, token: Token) -> bool {
        let mut table = self.0.lock();
        let voting = table.voting(owner, attempt);
        voting.map(|entry| entry.stage = Stage::Granted(token)).is_some()
    }

    /// The attempt failed, and the claim waits for another.
    pub(super) fn wait(&self, owner: Owner, attempt: &str, again: Moment) {
        if let Some(entry) = self.0.lock().voting(owner, attempt) {
            entry.stage = Stage::Waiting(again);
        }
    }

    /// Its vote was split: how often before, in a row.
    pub(super) fn splits(&self, owner: Owner) -> u32 {
        let mut table = self.0.lock();
        let Some(entry) = table.entries.get_mut(&owner) else { return 0 };
        entry.splits += 1;
        entry.splits - 1
    }

    /// The attempt failed, and there will be no other.
    pub(super) fn end(&self, owner: Owner, attempt: &str) {
        let mut table = self.0.lock();
        if table.voting(owner, attempt).is_some() {
            table.entries.remove(&owner);
        }
    }

    /// Whether this attempt is being voted on, or has won.
    pub(super) fn lives(&self, owner: Owner, attempt: &str) -> bool {
        match self.0.lock().entries.get(&owner).map(|entry| &entry.stage) {
            Some(Stage::Voting(present)) => present == attempt,
            Some(Stage::Granted(_)) => true,
            _ => false,
        }
    }

    /// The token, if the claim was granted; otherwise it is given up, for good.
    pub(super) fn settle(&self, claim: &Claim, now: Moment) -> Option<Token> {
        let mut table = self.0.lock();
        if let Some(Entry { stage: Stage::Granted(token), .. }) = table.entries.get(&claim.owner) {
            return Some(*token);
        }
        table.give_up(claim, now);
        None
    }

    /// The claim is given up, for good, whatever it has.
    pub(super) fn give_up(&self, claim: &Claim, now: Moment) {
        self.0.lock().give_up(claim, now);
    }

    /// The lease goes on for so long at least.
    pub(super) fn renew(&self, owner: Owner, until: Moment) {
        if let Some(entry) = self.0.lock().entries.get_mut(&owner) {
            entry.until = entry.until.max(until);
        }
    }

    /// The lease is over.
    pub(super) fn forget(&self, owner: Owner) {
        let mut table = self.0.lock();
        if table.entries.get(&owner).is_some_and(Entry::is_granted) {
            table.entries.remove(&owner);
        }
    }

    /// What a claim in the queue waits for: its bell, but at most until this moment; so many nodes
    /// have told of a release. `None` if it does not wait (any more).
    pub(super) fn waiting(&self, owner: Owner) -> Option<(Arc<Notify>, Moment, usize)> {
        match self.0.lock().entries.get(&owner)? {
            Entry { stage: Stage::Waiting(again), bell, woken, .. } => {
                Some((bell.clone(), *again, woken.count_ones() as usize))
            }
            _ => None,
        }
    }

    /// A node tells of this owner. Whether that is news for a waiter; otherwise it is for
    /// the holder of a lease.
    pub(super) fn heard(&self, owner: Owner, node: usize) -> bool {
        let mut table = self.0.lock();
        let Some(entry) = table.entries.get_mut(&owner) else { return true };
        if entry.is_granted() {
            return false;
        }
        entry.woken |= 1 << node;
        entry.bell.notify_one();
        true
    }

    /// Messages may have been lost: everybody who waits looks again.
    pub(super) fn heard_nothing(&self, now: Moment) {
        for entry in self.0.lock().entries.values_mut() {
            if let Stage::Waiting(again) = &mut entry.stage {
                *again = now;
                entry.bell.notify_one();
            }
        }
    }
}

impl Entry {
    fn new(stage: Stage, until: Moment, bell: Arc<Notify>) -> Self {
        Self { stage, until, bell, woken: 0, splits: 0 }
    }

    fn is_granted(&self) -> bool {
        matches!(self.stage, Stage::Granted(_))
    }
}

impl Table {
    /// The claim, if this very attempt is being voted on.
    fn voting(&mut self, owner: Owner, attempt: &str) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(&owner)?;
        matches!(&entry.stage, Stage::Voting(present) if present == attempt).then_some(entry)
    }

    fn give_up(&mut self, claim: &Claim, now: Moment) {
        let until = now + tombstone::term(claim.ttl);
        let bell = self.entries.remove(&claim.owner).map_or_else(Arc::default, |entry| entry.bell);
        bell.notify_one();
        self.entries.insert(claim.owner, Entry::new(Stage::GivenUp, until, bell));
    }

    fn sweep(&mut self, now: Moment) {
        if self.entries.len() < self.sweep_at.max(SWEEP_AT) {
            return;
        }
        self.entries.retain(|_, entry| entry.until > now);
        self.sweep_at = 2 * self.entries.len();
    }
}

/// A fresh owner for one attempt of this claim. It begins with the claim's own, so that
/// a release or an operator finds all of them.
fn attempt_of(owner: Owner) -> String {
    format!("{owner}.{:08x}", fastrand::u32(..))
}

/// The claim that an attempt belongs to.
pub(super) fn owner_of(attempt: &str) -> Option<Owner> {
    let (owner, number) = attempt.split_once('.')?;
    (owner.len() == 32 && number.len() == 8).then(|| owner.parse().ok()).flatten()
}
