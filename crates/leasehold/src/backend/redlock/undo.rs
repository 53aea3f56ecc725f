//! Taking back what attempts that failed, or that nobody waits for any more, left at nodes.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;

use super::super::redis::keys::Companion::Line;
use super::super::redis::keys::Keys;
use super::super::redis::script::Call;
use super::RedlockStore;
use super::claim::{Candidate, limit};
use super::node::Said;
use super::poll::Poll;
use super::script::RELEASE;
use crate::owner::Owner;

/// An attempt that may not count, and what it may have taken.
pub(super) struct Stray {
    pub(super) keys: Keys,
    pub(super) owner: Owner,
    /// Under which owner it goes out.
    pub(super) attempt: String,
}

/// A vote under way. Dropped before it is decided, it takes back what it may have got.
pub(super) struct Undecided<'a> {
    store: &'a Arc<RedlockStore>,
    pub(super) candidates: Vec<Candidate>,
    reorderings: Arc<[u64]>,
}

impl<'a> Undecided<'a> {
    pub(super) fn new(store: &'a Arc<RedlockStore>, candidates: Vec<Candidate>) -> Self {
        let reorderings = store.nodes.iter().map(|node| node.server.reorderings()).collect();
        Self { store, candidates, reorderings }
    }

    pub(super) fn limit(&self) -> Duration {
        let claims = self.candidates.iter().map(|candidate| &candidate.claim);
        limit(claims, self.store.settings.timeout)
    }

    /// The vote is over: those that lost are taken back, late answers are looked after.
    pub(super) fn decided<E>(
        mut self,
        poll: Poll,
        judge: impl Fn(&mut Candidate) -> E,
    ) -> Vec<(Candidate, E)> {
        let pending = poll.pending();
        let all: Vec<_> = match pending {
            0 => Vec::new(),
            _ => self.candidates.iter().map(Candidate::stray).collect(),
        };
        let mut lost = Vec::new();
        let mut ended = Vec::with_capacity(self.candidates.len());
        for mut candidate in std::mem::take(&mut self.candidates) {
            let judged = judge(&mut candidate);
            let counts = candidate.won()
                && self.store.bids.lives(candidate.claim.owner, candidate.attempt());
            if !counts && (candidate.got_any() || pending > 0) {
                lost.push(candidate.stray());
            }
            ended.push((candidate, judged));
        }
        take_back(self.store, lost);
        if !all.is_empty() {
            look_after(self.store, poll, all, self.reorderings.clone());
        }
        ended
    }
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        take_back(self.store, self.candidates.iter().map(Candidate::stray).collect());
    }
}

impl RedlockStore {
    fn releasing(&self, strays: &[Arc<Stray>]) -> Call {
        let mut call = Call::new(&RELEASE, 0, 1 + 2 * strays.len());
        call.arg(&self.marker);
        for stray in strays {
            call.arg(&stray.keys.lock);
        }
        for stray in strays {
            call.companion(&stray.keys, Line);
        }
        // Those who wait for it try again by themselves: nobody held it.
        call.arg(self.expected()).arg("0");
        for stray in strays {
            call.arg(&stray.attempt);
        }
        call
    }
}

/// In the background, at all nodes. On each connection it comes after the claim.
fn take_back(store: &Arc<RedlockStore>, strays: Vec<Arc<Stray>>) {
    // Without a runtime there is nobody to send it.
    if strays.is_empty() || Handle::try_current().is_err() {
        return;
    }
    drop(Poll::new(&store.nodes, store.releasing(&strays), store.settings.timeout));
}

/// Nodes that grant a claim after its vote: fine if the lease lives. What gave it back since
/// then came behind the claim, unless it may have overtaken it: then it is taken back again.
fn look_after(
    store: &Arc<RedlockStore>,
    poll: Poll,
    strays: Vec<Arc<Stray>>,
    reorderings: Arc<[u64]>,
) {
    let store = Arc::downgrade(store);
    poll.hand_over(Box::new(move |node, said| {
        let Some(store) = store.upgrade() else { return };
        let Said::Answers(answers) = said else {
            let mut nobody = vec![None; store.nodes.len()];
            store.note(node, &said, &mut nobody);
            return;
        };
        if store.nodes[node].server.reorderings() == reorderings[node] {
            return;
        }
        let granted = strays.iter().zip(answers.iter()).filter(|(stray, answer)| {
            let granted = match answer {
                Value::Int(1) => true,
                Value::Array(parts) => parts.first() == Some(&Value::Int(1)),
                _ => false,
            };
            granted && !store.bids.lives(stray.owner, &stray.attempt)
        });
        let granted: Vec<_> = granted.map(|(stray, _)| stray.clone()).collect();
        if !granted.is_empty() && Handle::try_current().is_ok() {
            let node = std::slice::from_ref(&store.nodes[node]);
            drop(Poll::new(node, store.releasing(&granted), store.settings.timeout));
        }
    }));
}
