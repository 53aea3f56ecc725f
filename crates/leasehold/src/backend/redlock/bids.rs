//! The claims of this client, from the first attempt to the end of the lease.
//!
//! Every attempt goes out under an owner of its own (the claim's, and a number that is never
//! used again). Whether an attempt counts is decided here and nowhere else: one that was
//! given up is never taken up again, whatever its nodes answer later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::Claim;
use crate::clock::Moment;
use crate::owner::Owner;
use crate::token::Token;

/// How many there may be before those that ended are looked for.
const SWEEP_AT: usize = 1024;
/// For how long at least an owner stays barred whose requests may still be on their way.
pub(super) const SHORTEST_BAR: Duration = Duration::from_secs(60);

/// All bids of a client.
#[derive(Debug, Default)]
pub(super) struct Bids {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    bids: HashMap<Owner, Bid>,
    sweep_at: usize,
}

/// One claim.
#[derive(Debug)]
struct Bid {
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
    /// It waits to be called, or for `again`.
    Waiting { again: Moment },
    /// It has the lock.
    Granted(Token),
    /// It was given up.
    Barred,
}

/// Whether a claim may be voted on.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// Under this owner.
    Attempt(String),
    /// It has the lock already, as far as we know.
    Granted(Token),
    /// It was given up.
    Barred,
}

/// What a claim in line has to wait for.
#[derive(Debug)]
pub(super) enum Waiting {
    /// The bell, but at most until this moment; so many nodes have told of a release.
    Until { again: Moment, bell: Arc<Notify>, woken: u32 },
    /// Nothing: it does not wait (any more).
    Nothing,
}

impl Bids {
    /// Begins an attempt.
    pub(super) fn begin(&self, claim: &Claim, now: Moment) -> Admission {
        let mut table = self.table.lock();
        table.sweep(now);
        let until = now + claim.ttl + claim.ttl.max(SHORTEST_BAR);
        let bid = table.bids.entry(claim.owner).or_insert_with(|| Bid {
            stage: Stage::Waiting { again: now },
            until,
            bell: Arc::default(),
            woken: 0,
            splits: 0,
        });
        match bid.stage {
            Stage::Barred => Admission::Barred,
            Stage::Granted(token) => Admission::Granted(token),
            Stage::Voting(_) | Stage::Waiting { .. } => {
                let attempt = attempt_of(claim.owner);
                bid.stage = Stage::Voting(attempt.clone());
                bid.until = until;
                bid.woken = 0;
                Admission::Attempt(attempt)
            }
        }
    }

    /// The attempt succeeded; whether it still counts.
    pub(super) fn grant(&self, owner: Owner, attempt: &str, token: Token) -> bool {
        let mut table = self.table.lock();
        let Some(bid) = table.bids.get_mut(&owner) else { return false };
        let counts = matches!(&bid.stage, Stage::Voting(present) if present == attempt);
        if counts {
            bid.stage = Stage::Granted(token);
        }
        counts
    }

    /// The attempt failed, and the claim waits for another.
    pub(super) fn wait(&self, owner: Owner, attempt: &str, again: Moment) {
        let mut table = self.table.lock();
        if let Some(bid) = table.bids.get_mut(&owner)
            && matches!(&bid.stage, Stage::Voting(present) if present == attempt)
        {
            bid.stage = Stage::Waiting { again };
        }
    }

    /// Its vote was split: how often before, in a row.
    pub(super) fn splits(&self, owner: Owner) -> u32 {
        let mut table = self.table.lock();
        let Some(bid) = table.bids.get_mut(&owner) else { return 0 };
        bid.splits += 1;
        bid.splits - 1
    }

    /// The attempt failed, and there will be no other.
    pub(super) fn end(&self, owner: Owner, attempt: &str) {
        let mut table = self.table.lock();
        let ended = table
            .bids
            .get(&owner)
            .is_some_and(|bid| matches!(&bid.stage, Stage::Voting(present) if present == attempt));
        if ended {
            table.bids.remove(&owner);
        }
    }

    /// Whether this attempt is being voted on, or has won.
    pub(super) fn lives(&self, owner: Owner, attempt: &str) -> bool {
        match self.table.lock().bids.get(&owner).map(|bid| &bid.stage) {
            Some(Stage::Voting(present)) => present == attempt,
            Some(Stage::Granted(_)) => true,
            _ => false,
        }
    }

    /// The token, if the claim was granted; otherwise it is given up, for good.
    pub(super) fn settle(&self, claim: &Claim, now: Moment) -> Option<Token> {
        let mut table = self.table.lock();
        if let Some(Bid { stage: Stage::Granted(token), .. }) = table.bids.get(&claim.owner) {
            return Some(*token);
        }
        table.bar(claim, now);
        None
    }

    /// The claim is given up, for good, whatever it has.
    pub(super) fn bar(&self, claim: &Claim, now: Moment) {
        self.table.lock().bar(claim, now);
    }

    /// The lease goes on for so long at least.
    pub(super) fn renew(&self, owner: Owner, until: Moment) {
        if let Some(bid) = self.table.lock().bids.get_mut(&owner) {
            bid.until = bid.until.max(until);
        }
    }

    /// The lease is over.
    pub(super) fn forget(&self, owner: Owner) {
        let mut table = self.table.lock();
        if table.bids.get(&owner).is_some_and(|bid| matches!(bid.stage, Stage::Granted(_))) {
            table.bids.remove(&owner);
        }
    }

    /// What this claim waits for.
    pub(super) fn waiting(&self, owner: Owner) -> Waiting {
        match self.table.lock().bids.get(&owner) {
            Some(Bid { stage: Stage::Waiting { again }, bell, woken, .. }) => {
                let (again, bell) = (*again, bell.clone());
                Waiting::Until { again, bell, woken: woken.count_ones() }
            }
            _ => Waiting::Nothing,
        }
    }

    /// A node tells of this owner. Whether that is news for a waiter; otherwise it is for
    /// the holder of a lease.
    pub(super) fn heard(&self, owner: Owner, node: usize) -> bool {
        let mut table = self.table.lock();
        let Some(bid) = table.bids.get_mut(&owner) else { return true };
        if matches!(bid.stage, Stage::Granted(_)) {
            return false;
        }
        bid.woken |= 1 << node;
        bid.bell.notify_one();
        true
    }

    /// Messages may have been lost: everybody who waits looks again.
    pub(super) fn heard_nothing(&self, now: Moment) {
        for bid in self.table.lock().bids.values_mut() {
            if let Stage::Waiting { again } = &mut bid.stage {
                *again = now;
                bid.bell.notify_one();
            }
        }
    }
}

impl Table {
    fn bar(&mut self, claim: &Claim, now: Moment) {
        let until = now + claim.ttl.max(SHORTEST_BAR);
        let bell = self.bids.remove(&claim.owner).map_or_else(Arc::default, |bid| bid.bell);
        bell.notify_one();
        let barred = Bid { stage: Stage::Barred, until, bell, woken: 0, splits: 0 };
        self.bids.insert(claim.owner, barred);
    }

    fn sweep(&mut self, now: Moment) {
        if self.bids.len() < self.sweep_at.max(SWEEP_AT) {
            return;
        }
        self.bids.retain(|_, bid| bid.until > now);
        self.sweep_at = 2 * self.bids.len();
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
