//! What this client holds, asks for and waits for. Local, and the truth: only this process
//! sends requests in its sessions.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tokio_util::sync::CancellationToken;

use super::super::key::Key;
use super::asking::Asking;
use super::lifeline::Lifeline;
use crate::backend::kit::owner_map::OwnerMap;
use crate::backend::{Claim, Grant, Hold, LeaseInfo, Proof};
use crate::clock::Moment;
use crate::detach::DetachOnDrop;
use crate::holder::HeldBy;
use crate::owner::Owner;
use crate::token::Token;

/// How many idle sessions are kept for those who will wait.
const SPARE: usize = 4;

/// A lock that is held.
#[derive(Debug, Clone)]
pub(super) struct Held {
    pub(super) claim: Claim,
    pub(super) key: Key,
    pub(super) token: Token,
    pub(super) proof: Proof,
    pub(super) line: Arc<Lifeline>,
    /// Whether others' locks are on the same session: else it goes back to those that wait.
    pub(super) shared: bool,
    pub(super) since: SystemTime,
    pub(super) granted: Moment,
    pub(super) published: bool,
    /// Whether its grant was told to whoever claims it.
    pub(super) told: bool,
}

/// When something was got, on both clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Since {
    pub(super) wall: SystemTime,
    pub(super) moment: Moment,
}

impl Held {
    /// A lock that was asked for at this moment, and got since then.
    pub(super) fn new(
        (key, claim): (Key, Claim),
        token: i64,
        asked: Moment,
        line: &Arc<Lifeline>,
        shared: bool,
        since: Since,
    ) -> Self {
        Self {
            proof: Proof { at: asked, valid_for: claim.ttl },
            claim,
            key,
            token: Token::new(token as u64),
            line: line.clone(),
            shared,
            since: since.wall,
            granted: since.moment,
            published: false,
            told: false,
        }
    }

    pub(super) fn grant(&self) -> Grant {
        Grant { token: self.token, proof: self.proof }
    }

    /// Until when its client has claimed to be there.
    pub(super) fn kept_until(&self) -> Moment {
        self.proof.at + self.claim.ttl
    }

    pub(super) fn info(&self, now: Moment) -> LeaseInfo {
        let by = HeldBy::new(Some((*self.claim.holder).clone()), Some(self.since));
        let remaining = Some(now.until(self.kept_until()));
        LeaseInfo::new(Some(self.claim.owner), Some(self.token), by, remaining)
    }
}

/// A claim that waits in line, on a session of its own.
#[derive(Debug)]
pub(super) struct Waiting {
    /// Unless somebody waits for its end, and has it.
    pub(super) request: Option<DetachOnDrop<Option<Grant>>>,
    /// Open until it is over, whoever has it.
    pub(super) asking: Asking,
    pub(super) cancel: CancellationToken,
    /// Since when nobody waits for its end.
    pub(super) left: Moment,
}

impl Waiting {
    /// Whether nobody has waited for its end for so long.
    pub(super) fn is_left(&self, now: Moment, long: Duration) -> bool {
        self.request.is_some() && self.left + long <= now
    }

    /// Completes when it is over, whoever waits for that.
    pub(super) async fn over(self) {
        drop(self.request);
        self.asking.over().await;
    }
}

/// What one client knows.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) held: OwnerMap<Held>,
    /// Keys that are held or asked for on the shared session: it would get them again.
    pub(super) keys: HashMap<Key, Owner>,
    /// Claims under way.
    pub(super) asking: OwnerMap<Asking>,
    pub(super) waiting: OwnerMap<Waiting>,
    pub(super) barred: OwnerMap<Moment>,
    /// Keys that were found held: those who may wait do so at once.
    pub(super) crowded: HashMap<Key, Moment>,
    /// Leases that ended with their session: their tokens, and when.
    pub(super) ended: OwnerMap<Moment>,
    /// Sessions that wait for somebody to wait.
    pub(super) spare: Vec<Arc<Lifeline>>,
    /// What was published and is over: key, backend and token.
    pub(super) retract: Vec<(Key, i32, i64)>,
}

impl Table {
    /// The lease that this hold is about, if it is one.
    pub(super) fn find(&self, hold: &Hold) -> Option<&Held> {
        let held = self.held.get(&hold.owner)?;
        (held.token == hold.token && held.claim.name == hold.name).then_some(held)
    }

    /// The grant of a lease, for whoever claims it: from now on it is not given back unasked.
    pub(super) fn tell(&mut self, owner: Owner) -> Option<Grant> {
        let held = self.held.get_mut(&owner)?;
        held.told = true;
        Some(held.grant())
    }

    /// Takes a lease out of the table; its key is free once the server has let go of it.
    pub(super) fn remove(&mut self, owner: Owner) -> Option<Held> {
        let held = self.held.remove(&owner)?;
        if held.published {
            self.retract.push((held.key, held.line.backend(), held.token.get() as i64));
        }
        Some(held)
    }

    /// The server was told to let go of this lease: its key can be had again.
    pub(super) fn unlocked(&mut self, held: &Held) {
        if held.shared {
            self.free(held.key, held.claim.owner);
        }
    }

    /// A session that carries nothing any more: the next one who waits may use it.
    pub(super) fn keep_spare(&mut self, line: Arc<Lifeline>) {
        if line.is_open() && self.spare.len() < SPARE {
            self.spare.push(line);
        } else {
            line.session.close();
        }
    }

    pub(super) fn free(&mut self, key: Key, owner: Owner) {
        if self.keys.get(&key) == Some(&owner) {
            self.keys.remove(&key);
        }
    }

    /// The lease on this key, if it is one of ours.
    pub(super) fn on_key(&self, key: Key) -> Option<&Held> {
        self.held.values().find(|held| held.key == key)
    }

    /// A session ended: so did what it carried.
    pub(super) fn session_ended(&mut self, line: &Arc<Lifeline>, now: Moment) {
        let gone: Vec<Owner> = self
            .held
            .iter()
            .filter(|(_, held)| Arc::ptr_eq(&held.line, line))
            .map(|(owner, _)| *owner)
            .collect();
        for owner in gone {
            if let Some(held) = self.remove(owner) {
                self.free(held.key, owner);
                self.ended.insert(owner, now);
            }
        }
        self.spare.retain(|spare| !Arc::ptr_eq(spare, line));
    }
}
