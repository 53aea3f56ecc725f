//! What this client asked for and has: every node that the store ever creates is entered here
//! first. A node that a session has and the ledger does not know is a stranger, and deleted.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::session::Session;
use crate::backend::kit::hints::Hints;
use crate::backend::kit::ledger::{self, Ledger};
use crate::backend::{Claim, Grant, Proof};
use crate::clock::{Clock, Moment};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How long a place in the queue lasts that nobody waits on.
const PATIENCE_WITH_WAITERS: Duration = Duration::from_secs(3);

/// One claim, and what became of it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) claim: Claim,
    /// The lock's node.
    pub(super) lock: Arc<str>,
    pub(super) session: Arc<Session>,
    /// When it was granted, in milliseconds since 1970.
    pub(super) since: Option<u64>,
    pub(super) stage: Stage,
    /// How many wait on its place.
    pub(super) attended: usize,
    /// When nobody wants it any more, unless something happens until then.
    pub(super) until: Moment,
}

/// How far a claim has come.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    /// Its node was asked for, and nothing is known yet.
    Asked,
    /// It has a node in the queue.
    Waiting {
        node: Node,
        /// How many were before it when it was last looked at.
        ahead: usize,
    },
    /// It has the lock.
    Held { node: Node, proof: Proof },
    /// Its node is to go.
    Leaving { node: Node },
}

/// A node of ours.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Its name below the lock's.
    pub(super) child: Arc<str>,
    pub(super) token: Token,
}

impl Entry {
    /// A claim of which nothing is sent yet.
    pub(super) fn new(claim: Claim, lock: Arc<str>, session: Arc<Session>) -> Self {
        let (stage, until) = (Stage::Asked, Moment::NEVER);
        Self { claim, lock, session, since: None, stage, attended: 0, until }
    }

    pub(super) fn node(&self) -> Option<&Node> {
        match &self.stage {
            Stage::Asked => None,
            Stage::Waiting { node, .. } | Stage::Held { node, .. } | Stage::Leaving { node } => {
                Some(node)
            }
        }
    }

    /// What it was granted.
    pub(super) fn grant(&self) -> Option<Grant> {
        match &self.stage {
            Stage::Held { node, proof } => Some(Grant { token: node.token, proof: *proof }),
            _ => None,
        }
    }

    /// The whole path of its node.
    pub(super) fn path(&self) -> Option<String> {
        self.node().map(|node| format!("{}/{}", self.lock, node.child))
    }

    fn leave(&mut self, node: Node) {
        self.stage = Stage::Leaving { node };
        // Until it is gone the janitor tries again and again.
        self.until = Moment::from_nanos(0);
    }
}

impl ledger::Entry for Entry {
    fn name(&self) -> &Name {
        &self.claim.name
    }

    fn token(&self) -> Option<Token> {
        self.node().map(|node| node.token)
    }

    fn until(&self) -> Moment {
        match self.stage {
            Stage::Waiting { .. } if self.attended > 0 => Moment::NEVER,
            _ => self.until,
        }
    }
}

/// What the store shares with the tasks of its sessions. All locks are short: what is looked up
/// is a copy.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) clock: Clock,
    pub(super) ledger: Mutex<Ledger<Entry>>,
    pub(super) hints: Hints,
    /// Wakes the janitor: something is due earlier than it knows.
    pub(super) chores: Notify,
}

impl Shared {
    pub(super) fn new(clock: Clock) -> Self {
        let (ledger, hints) = (Mutex::default(), Hints::default());
        Self { clock, ledger, hints, chores: Notify::new() }
    }

    pub(super) fn entry(&self, owner: Owner) -> Option<Entry> {
        self.ledger.lock().get(owner).cloned()
    }

    pub(super) fn remove(&self, owner: Owner) {
        let removed = self.ledger.lock().remove(owner);
        // Outside of the lock: with the last entry its session goes.
        drop(removed);
    }

    /// From now on this owner gets nothing.
    pub(super) fn bury(&self, owner: Owner, ttl: Duration) {
        self.ledger.lock().tombstones.add(owner, ttl, self.clock.now());
    }

    /// Enters claims of which something is about to be sent; `false` if one of them was
    /// settled meanwhile.
    pub(super) fn enter<'a>(&self, entries: impl Iterator<Item = &'a Entry> + Clone) -> bool {
        let (now, mut ledger) = (self.clock.now(), self.ledger.lock());
        if entries.clone().any(|entry| ledger.tombstones.has(entry.claim.owner, now)) {
            return false;
        }
        for entry in entries {
            let until = now + entry.claim.ttl.max(PATIENCE_WITH_WAITERS);
            ledger.insert(entry.claim.owner, Entry { until, ..entry.clone() }, now);
        }
        true
    }

    /// It has a place in the queue, with so many before it.
    pub(super) fn queued(&self, owner: Owner, node: Node, ahead: usize) {
        let until = self.clock.now() + PATIENCE_WITH_WAITERS;
        let _gone = self.ledger.lock().update(owner, |entry| {
            entry.stage = Stage::Waiting { node, ahead };
            entry.until = until;
        });
    }

    /// The lock is this owner's, as far as the session is proved. `None` if it has gone
    /// meanwhile.
    pub(super) fn granted(&self, owner: Owner, node: Node, session: &Session) -> Option<Grant> {
        let (now, wall) = (self.clock.now(), self.clock.wall_micros());
        let proof = session.proof();
        self.ledger.lock().update(owner, |entry| {
            let ttl = entry.claim.ttl;
            // The session may last for longer than the lease does.
            let proof = Proof { valid_for: proof.valid_for.min(ttl), ..proof };
            let token = node.token;
            entry.since = Some(wall / 1_000);
            entry.stage = Stage::Held { node, proof };
            entry.until = now + ttl;
            Grant { token, proof }
        })
    }

    /// It was renewed. `false` if it is given up already, and its node about to go.
    pub(super) fn renewed(&self, owner: Owner, proof: Proof) -> bool {
        let until = self.clock.now();
        let renewed = self.ledger.lock().update(owner, |entry| {
            let Stage::Held { proof: last, .. } = &mut entry.stage else { return false };
            *last = proof;
            entry.until = until + entry.claim.ttl;
            true
        });
        renewed.unwrap_or(false)
    }

    /// This node is to go, whatever else happens.
    pub(super) fn leaving(&self, owner: Owner, node: Node) {
        let _gone = self.ledger.lock().update(owner, |entry| entry.leave(node));
    }

    /// Somebody waits on this place, or (`-1`) no longer does.
    pub(super) fn attend(&self, owner: Owner, by: isize) {
        let until = self.clock.now() + PATIENCE_WITH_WAITERS;
        let _gone = self.ledger.lock().update(owner, |entry| {
            entry.attended = entry.attended.saturating_add_signed(by);
            if matches!(entry.stage, Stage::Waiting { .. }) {
                entry.until = until;
            }
        });
    }

    /// Whether it is still overdue: it may have been renewed while we looked elsewhere.
    /// If so, its node is to go from now on.
    pub(super) fn give_up(&self, owner: Owner) -> bool {
        let mut ledger = self.ledger.lock();
        if !ledger.is_overdue(owner, self.clock.now()) {
            return false;
        }
        let _gone = ledger.update(owner, |entry| {
            if let Some(node) = entry.node().cloned() {
                entry.leave(node);
            }
        });
        true
    }
}
