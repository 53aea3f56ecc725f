//! Attempts at a vote, and taking back what they left at the nodes when they failed, or when
//! nobody waits for them any more.

use std::mem;
use std::slice;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::Companion::RedlockQueue;
use super::node::{Node, Said};
use super::poll::Poll;
use super::script::{RELEASE, WITHDRAW};
use super::votes::{Decision, Votes};
use super::{Call, Keys, RedlockStore, Value, millis};
use crate::backend::Claim;
use crate::backend::kit::tombstone;
use crate::error::Result;
use crate::owner::Owner;

/// A claim that is being voted on.
pub(super) struct Candidate {
    /// Its place in the request.
    pub(super) place: usize,
    pub(super) claim: Claim,
    pub(super) attempt: Arc<Attempt>,
    pub(super) votes: Votes,
    pub(super) decision: Decision,
    /// A guess, until a majority needs a higher one.
    pub(super) token: u64,
}

/// One attempt of a claim: it may not count, and may have taken locks all the same.
pub(super) struct Attempt {
    pub(super) keys: Keys,
    pub(super) owner: Owner,
    /// Under which owner it goes out.
    pub(super) id: String,
}

/// A vote under way. Dropped before it is decided, it takes back what it may have got.
pub(super) struct Vote<'a> {
    store: &'a Arc<RedlockStore>,
    pub(super) candidates: Vec<Candidate>,
    reorderings: Vec<u64>,
}

impl<'a> Vote<'a> {
    pub(super) fn new(store: &'a Arc<RedlockStore>, candidates: Vec<Candidate>) -> Self {
        let reorderings = store.nodes.iter().map(|node| node.server.reorderings()).collect();
        Self { store, candidates, reorderings }
    }

    /// The vote is over: losers are taken back, late answers are looked after.
    pub(super) fn decided<E>(
        mut self,
        poll: Poll,
        judge: impl Fn(&mut Candidate) -> E,
    ) -> Vec<(Candidate, E)> {
        let (store, pending) = (self.store, poll.pending());
        let mut lost = Vec::new();
        let ended = mem::take(&mut self.candidates).into_iter().map(|mut candidate| {
            let judged = judge(&mut candidate);
            let counts = candidate.decision == Decision::Won && candidate.attempt.lives(store);
            if !counts && (candidate.votes.granted != 0 || pending > 0) {
                lost.push(candidate.attempt.clone());
            }
            (candidate, judged)
        });
        let ended: Vec<_> = ended.collect();
        take_back(store, &store.nodes, &lost);
        if pending > 0 {
            let attempts = ended.iter().map(|(candidate, _)| candidate.attempt.clone()).collect();
            look_after(store, poll, attempts, mem::take(&mut self.reorderings));
        }
        ended
    }
}

impl Drop for Vote<'_> {
    fn drop(&mut self) {
        let attempts: Vec<_> = self.candidates.iter().map(|one| one.attempt.clone()).collect();
        take_back(self.store, &self.store.nodes, &attempts);
    }
}

impl Candidate {
    pub(super) fn is_open(&self) -> bool {
        self.decision == Decision::Open
    }
}

impl Attempt {
    /// Whether it is being voted on, or has won.
    fn lives(&self, store: &RedlockStore) -> bool {
        store.ledger.lives(self.owner, &self.id)
    }
}

/// In the background. On each connection it comes after the claim.
fn take_back(store: &RedlockStore, nodes: &[Arc<Node>], attempts: &[Arc<Attempt>]) {
    // Without a runtime there is nobody to send it.
    if attempts.is_empty() || Handle::try_current().is_err() {
        return;
    }
    // Those who wait for it try again by themselves: nobody held it.
    let mut call = releasing(store, attempts.iter().map(|attempt| &attempt.keys), false);
    for attempt in attempts {
        call.arg(&attempt.id);
    }
    drop(Poll::new(nodes, call, store.settings.timeout));
}

/// A call that releases these locks; the owner of each comes next.
pub(super) fn releasing<'a>(
    store: &RedlockStore,
    locks: impl ExactSizeIterator<Item = &'a Keys> + Clone,
    wakes: bool,
) -> Call {
    let mut call = store.call(&RELEASE, 2 * locks.len());
    for keys in locks.clone() {
        call.arg(&keys.lock);
    }
    for keys in locks {
        call.companion(keys, RedlockQueue);
    }
    call.arg(store.expected()).arg(u8::from(wakes));
    call
}

/// Nodes that grant a claim after its vote: fine if the lease lives. What gave it back since
/// then came behind the claim, unless it may have overtaken it: then it is taken back again.
fn look_after(
    store: &Arc<RedlockStore>,
    poll: Poll,
    attempts: Vec<Arc<Attempt>>,
    reorderings: Vec<u64>,
) {
    let store = Arc::downgrade(store);
    poll.hand_over(move |node, said| {
        let Some(store) = store.upgrade() else { return };
        let Said::Answers(answers) = said else {
            store.note(&said);
            return;
        };
        if store.nodes[node].server.reorderings() == reorderings[node] {
            return;
        }
        let granted = attempts.iter().zip(answers.iter()).filter(|(attempt, answer)| {
            let granted = match answer {
                Value::Int(1) => true,
                Value::Array(parts) => parts.first() == Some(&Value::Int(1)),
                _ => false,
            };
            granted && !attempt.lives(&store)
        });
        let granted: Vec<_> = granted.map(|(attempt, _)| attempt.clone()).collect();
        take_back(&store, slice::from_ref(&store.nodes[node]), &granted);
    });
}

/// Whatever these claims have at the nodes goes. A majority must know of it: the others let it
/// lapse.
pub(super) async fn withdraw(store: &RedlockStore, claims: &[Claim]) -> Result<()> {
    let call = || {
        let mut call = store.call(&WITHDRAW, 2 * claims.len());
        for claim in claims {
            call.keys(&store.keys(&claim.name), &[RedlockQueue]);
        }
        call.arg(store.expected());
        for claim in claims {
            call.arg(claim.owner).arg(millis(tombstone::term(claim.ttl)));
        }
        call
    };
    let limit = store.limit(claims.iter().map(|claim| claim.ttl));
    let items = claims.len()..=claims.len();
    let answers = store.consult(call, items, limit, |answers| answers.yes(0) >= store.majority);
    let answers = answers.await;
    if answers.yes(0) >= store.majority { Ok(()) } else { Err(answers.no_majority()) }
}
