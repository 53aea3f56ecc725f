//! What this client asked for, waits for and holds. It is the truth: only this process sends
//! requests in its sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::key::Key;
use super::lifeline::Lifeline;
use crate::backend::kit::ledger::{self, Entry};
use crate::backend::kit::owner_map::OwnerMap;
use crate::backend::{Claim, Grant, Hold, LeaseInfo, Proof};
use crate::clock::Moment;
use crate::detach::DetachOnDrop;
use crate::holder::HeldBy;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How many idle sessions are kept for claims that will wait.
const IDLE: usize = 4;
/// How long a key counts as contended after it was found held.
pub(super) const CONTENDED_FOR: Duration = Duration::from_secs(1);
/// How long a place in the queue is kept when nobody waits on it.
const UNATTENDED: Duration = Duration::from_secs(3);
const ENDED_FOR: Duration = Duration::from_secs(600);

/// A lock that is held.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) key: Key,
    pub(super) grant: Grant,
    pub(super) lifeline: Arc<Lifeline>,
    pub(super) since: SystemTime,
    pub(super) granted: Moment,
    pub(super) published: bool,
    /// Whether its claimant knows of the grant.
    pub(super) collected: bool,
}

impl Held {
    pub(super) fn info(&self, now: Moment) -> LeaseInfo {
        let by = HeldBy::new(Some((*self.claim.holder).clone()), Some(self.since));
        let remaining = Some(now.until(self.until()));
        LeaseInfo::new(Some(self.claim.owner), Some(self.grant.token), by, remaining)
    }
}

impl Entry for Held {
    fn name(&self) -> &Name {
        &self.claim.name
    }

    fn token(&self) -> Option<Token> {
        Some(self.grant.token)
    }

    /// Until when its client has claimed to be there.
    fn until(&self) -> Moment {
        self.grant.proof.at + self.claim.ttl
    }
}

/// A claim that waits in the queue, in a session of its own.
#[derive(Debug)]
pub(super) struct Waiting {
    /// `None` while somebody waits for its end, and polls it.
    pub(super) request: Option<DetachOnDrop<Option<()>>>,
    /// Cancelled when the request is over, whoever polls it.
    pub(super) over: CancellationToken,
    pub(super) cancel: CancellationToken,
    /// Since when nobody waits for its end.
    pub(super) left: Moment,
}

impl Waiting {
    /// Calls it off, and completes when it is over.
    pub(super) async fn end(self) {
        self.cancel.cancel();
        drop(self.request);
        self.over.cancelled().await;
    }
}

#[derive(Debug, Default)]
pub(super) struct Ledger {
    pub(super) held: ledger::Ledger<Held>,
    /// Keys that are held or asked for in the shared session: it would get them again.
    pub(super) keys: HashMap<Key, Owner>,
    /// Claims under way; cancelled when the request is over, however it ended.
    pub(super) asked: OwnerMap<CancellationToken>,
    pub(super) waiting: OwnerMap<Waiting>,
    /// Keys that were found held, and until when claims that may wait do so at once.
    pub(super) contended: HashMap<Key, Moment>,
    /// Leases that ended with their session, and until when that is known.
    pub(super) ended: OwnerMap<Moment>,
    /// Sessions that carry nothing, for claims that will wait.
    pub(super) idle: Vec<Arc<Lifeline>>,
    /// What was published and is over: key, backend and token.
    pub(super) retract: Vec<(Key, i32, i64)>,
}

impl Ledger {
    /// Enters a lease that was asked for at this moment, and granted at another, on both clocks.
    pub(super) fn hold(
        &mut self,
        (key, claim): (Key, Claim),
        token: i64,
        asked: Moment,
        lifeline: &Arc<Lifeline>,
        (since, granted): (SystemTime, Moment),
    ) -> Grant {
        let (owner, proof) = (claim.owner, Proof { at: asked, valid_for: claim.ttl });
        let grant = Grant { token: Token::new(token as u64), proof };
        let (lifeline, published, collected) = (lifeline.clone(), false, false);
        let held = Held { claim, key, grant, lifeline, since, granted, published, collected };
        self.held.insert(owner, held, granted);
        grant
    }

    /// The grant of a lease, for its claimant: from now on it is not given back unasked.
    pub(super) fn collect(&mut self, owner: Owner) -> Option<Grant> {
        self.held.update(owner, |held| {
            held.collected = true;
            held.grant
        })
    }

    /// The lease on this key, if it is one of ours.
    pub(super) fn on_key(&self, key: Key) -> Option<&Held> {
        self.held.iter().map(|(_, held)| held).find(|held| held.key == key)
    }

    /// Takes out the lease that this hold is about.
    pub(super) fn take(&mut self, hold: &Hold) -> Option<Held> {
        self.held.find(hold)?;
        self.remove(hold.owner)
    }

    /// Takes a lease out; its key is free once the server has let go of it.
    pub(super) fn remove(&mut self, owner: Owner) -> Option<Held> {
        let held = self.held.remove(owner)?;
        if held.published {
            let backend = held.lifeline.session.backend;
            self.retract.push((held.key, backend, held.grant.token.get() as i64));
        }
        Some(held)
    }

    /// Frees a key that the shared session gave back for this owner, or did not get.
    pub(super) fn free(&mut self, key: Key, owner: Owner) {
        if self.keys.get(&key) == Some(&owner) {
            self.keys.remove(&key);
        }
    }

    /// Keeps a session that carries nothing any more, for the next claim that waits.
    pub(super) fn keep_idle(&mut self, lifeline: Arc<Lifeline>) {
        if lifeline.is_open() && self.idle.len() < IDLE {
            self.idle.push(lifeline);
        } else {
            lifeline.session.close();
        }
    }

    /// A session ended: so did what it carried.
    pub(super) fn session_ended(&mut self, lifeline: &Arc<Lifeline>, now: Moment) {
        let carried = self.held.iter().filter(|(_, held)| Arc::ptr_eq(&held.lifeline, lifeline));
        let gone: Vec<Owner> = carried.map(|(owner, _)| owner).collect();
        for held in gone.into_iter().filter_map(|owner| self.remove(owner)).collect::<Vec<_>>() {
            self.free(held.key, held.claim.owner);
            self.ended.insert(held.claim.owner, now + ENDED_FOR);
        }
        self.idle.retain(|idle| !Arc::ptr_eq(idle, lifeline));
    }

    /// Takes out the leases whose clients did not renew them, and forgets what is over.
    pub(super) fn take_lapsed(&mut self, now: Moment) -> Vec<Held> {
        self.contended.retain(|_, until| *until > now);
        self.ended.retain(|_, until| *until > now);
        let lapsed = self.held.overdue(now);
        lapsed.into_iter().filter_map(|owner| self.remove(owner)).collect()
    }

    /// Takes out the waits for whose end nobody has waited for long.
    pub(super) fn take_left(&mut self, now: Moment) -> Vec<(Owner, Waiting)> {
        let left =
            |waiting: &Waiting| waiting.request.is_some() && waiting.left + UNATTENDED <= now;
        self.waiting.extract_if(|_, waiting| left(waiting)).collect()
    }
}
