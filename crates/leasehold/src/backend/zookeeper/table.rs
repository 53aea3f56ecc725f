//! The client's own book of what it asked for and has: every node that this store ever
//! creates is written down here first. What a session has and this book does not know is
//! a stranger, and deleted.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::card::Card;
use super::session::Session;
use crate::backend::{Grant, Proof};
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How long a place in line lasts that nobody waits on.
pub(super) const PATIENCE_WITH_WAITERS: Duration = Duration::from_secs(3);
/// How long an owner stays barred at least.
const BARRED_FOR: Duration = Duration::from_secs(60);

/// One claim, and what became of it.
#[derive(Debug, Clone)]
pub(super) struct Entry {
    pub(super) name: Name,
    /// The lock's node.
    pub(super) lock: Arc<str>,
    pub(super) session: Arc<Session>,
    pub(super) card: Card,
    pub(super) stand: Stand,
}

/// Where a claim stands.
#[derive(Debug, Clone)]
pub(super) enum Stand {
    /// Its node was asked for, and nothing is known yet.
    Asked { at: Moment },
    /// It has a node in line.
    Waiting {
        node: Node,
        /// How many were before it when it was last looked at.
        ahead: usize,
        attended: usize,
        until: Moment,
    },
    /// It has the lock.
    Held { node: Node, proof: Proof, until: Moment },
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
    pub(super) fn node(&self) -> Option<&Node> {
        match &self.stand {
            Stand::Asked { .. } => None,
            Stand::Waiting { node, .. } | Stand::Held { node, .. } | Stand::Leaving { node } => {
                Some(node)
            }
        }
    }

    /// The whole path of its node.
    pub(super) fn path(&self) -> Option<String> {
        self.node().map(|node| format!("{}/{}", self.lock, node.child))
    }

    pub(super) fn ttl(&self) -> Duration {
        self.card.ttl
    }
}

#[derive(Debug, Default)]
pub(super) struct Table {
    entries: Mutex<HashMap<Owner, Entry>>,
    /// Owners whose late requests must not take effect, and until when.
    barred: Mutex<HashMap<Owner, Moment>>,
}

impl Table {
    pub(super) fn get(&self, owner: Owner) -> Option<Entry> {
        self.entries.lock().get(&owner).cloned()
    }

    /// Before its node is asked for.
    pub(super) fn insert(&self, owner: Owner, entry: Entry) {
        self.entries.lock().insert(owner, entry);
    }

    pub(super) fn remove(&self, owner: Owner) -> Option<Entry> {
        self.entries.lock().remove(&owner)
    }

    /// Forgets all: nobody is left who could ask.
    pub(super) fn clear(&self) {
        // Outside of the lock: with the last entry its session goes.
        let entries = std::mem::take(&mut *self.entries.lock());
        drop(entries);
    }

    pub(super) fn contains(&self, owner: Owner) -> bool {
        self.entries.lock().contains_key(&owner)
    }

    pub(super) fn is_barred(&self, owner: Owner, now: Moment) -> bool {
        self.barred.lock().get(&owner).is_some_and(|until| *until > now)
    }

    /// From now on this owner gets nothing.
    pub(super) fn bar(&self, owner: Owner, ttl: Duration, now: Moment) {
        let mut barred = self.barred.lock();
        barred.retain(|_, until| *until > now);
        barred.insert(owner, now + ttl.max(BARRED_FOR));
    }

    /// It has a place in line, with so many before it.
    pub(super) fn queued(&self, owner: Owner, node: Node, ahead: usize, now: Moment) {
        if let Some(entry) = self.entries.lock().get_mut(&owner) {
            let attended = match &entry.stand {
                Stand::Waiting { attended, .. } => *attended,
                _ => 0,
            };
            let until = now + PATIENCE_WITH_WAITERS;
            entry.stand = Stand::Waiting { node, ahead, attended, until };
        }
    }

    /// The lock is this owner's. `None` if it has gone meanwhile.
    pub(super) fn granted(
        &self,
        owner: Owner,
        node: Node,
        proof: Proof,
        now: Moment,
        wall_millis: u64,
    ) -> Option<Grant> {
        let mut entries = self.entries.lock();
        let entry = entries.get_mut(&owner)?;
        let (token, until) = (node.token, now + entry.card.ttl);
        // Its session may last for longer than it does.
        let proof = Proof { valid_for: proof.valid_for.min(entry.card.ttl), ..proof };
        entry.card.since = Some(wall_millis);
        entry.stand = Stand::Held { node, proof, until };
        Some(Grant { token, proof })
    }

    /// It was renewed. `false` if it is given up already, and its node about to go.
    pub(super) fn renewed(&self, owner: Owner, proof: Proof, now: Moment) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&owner) else { return false };
        let term = now + entry.card.ttl;
        let Stand::Held { proof: last, until, .. } = &mut entry.stand else { return false };
        *last = proof;
        *until = term;
        true
    }

    /// Its node is to go, whatever else happens.
    pub(super) fn leaving(&self, owner: Owner) {
        if let Some(entry) = self.entries.lock().get_mut(&owner)
            && let Some(node) = entry.node().cloned()
        {
            entry.stand = Stand::Leaving { node };
        }
    }

    /// Somebody waits on this place, or (`-1`) no longer does.
    pub(super) fn attend(&self, owner: Owner, by: isize, now: Moment) {
        if let Some(entry) = self.entries.lock().get_mut(&owner)
            && let Stand::Waiting { attended, until, .. } = &mut entry.stand
        {
            *attended = attended.saturating_add_signed(by);
            *until = now + PATIENCE_WITH_WAITERS;
        }
    }

    /// The owner that holds this lock with this token.
    pub(super) fn holder_with(&self, name: &Name, token: Token) -> Option<Owner> {
        let entries = self.entries.lock();
        let held = entries.iter().find(|(_, entry)| {
            entry.name == *name && entry.node().is_some_and(|node| node.token == token)
        });
        held.map(|(owner, _)| *owner)
    }

    /// What nobody wants any more: holds that were not renewed, places that nobody waits
    /// on, questions without an answer, what is to go; and when the next of them is due.
    pub(super) fn overdue(&self, now: Moment) -> (Vec<(Owner, Entry)>, Moment) {
        let mut next = Moment::NEVER;
        let mut overdue = Vec::new();
        for (owner, entry) in self.entries.lock().iter() {
            let due = match &entry.stand {
                Stand::Asked { at } => *at + entry.card.ttl.max(PATIENCE_WITH_WAITERS),
                Stand::Waiting { attended: 1.., .. } => continue,
                Stand::Waiting { until, .. } | Stand::Held { until, .. } => *until,
                Stand::Leaving { .. } => now,
            };
            if due <= now {
                overdue.push((*owner, entry.clone()));
            } else {
                next = next.min(due);
            }
        }
        (overdue, next)
    }

    /// Whether it is still overdue: it may have been renewed while we looked elsewhere.
    /// If so, its node is to go from now on.
    pub(super) fn give_up(&self, owner: Owner, now: Moment) -> bool {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&owner) else { return false };
        let over = match &entry.stand {
            Stand::Asked { at } => *at + entry.card.ttl.max(PATIENCE_WITH_WAITERS) <= now,
            Stand::Waiting { attended, until, .. } => *attended == 0 && *until <= now,
            Stand::Held { until, .. } => *until <= now,
            Stand::Leaving { .. } => true,
        };
        if over && let Some(node) = entry.node().cloned() {
            entry.stand = Stand::Leaving { node };
        }
        over
    }
}
