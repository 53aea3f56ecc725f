//! Taking back what attempts that failed, or that nobody waits for any more, left at nodes.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::runtime::Handle;

use super::super::keys::Companion::Line;
use super::super::keys::Keys;
use super::super::script::Call;
use super::RedlockStore;
use super::claim::{Candidate, limit};
use super::node::Said;
use super::poll::Poll;
use super::script::RELEASE;
use crate::owner::Owner;

/// How long answers that come after the vote are waited for.
const LATEST: Duration = Duration::from_secs(30);

/// An attempt that does not count.
#[derive(Clone)]
struct Stray {
    keys: Keys,
    owner: Owner,
    attempt: String,
}

/// A vote under way. Dropped before it is decided, it takes back what it may have got.
pub(super) struct Undecided<'a> {
    store: &'a Arc<RedlockStore>,
    pub(super) candidates: Vec<Candidate>,
    connections: Arc<[u64]>,
}

impl<'a> Undecided<'a> {
    pub(super) fn new(store: &'a Arc<RedlockStore>, candidates: Vec<Candidate>) -> Self {
        let connections = store.nodes.iter().map(|node| node.connection()).collect();
        Self { store, candidates, connections }
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
        let all: Vec<Stray> = match poll.pending() {
            0 => Vec::new(),
            _ => self.candidates.iter().map(Stray::of).collect(),
        };
        let mut lost = Vec::new();
        let mut ended = Vec::with_capacity(self.candidates.len());
        for mut candidate in std::mem::take(&mut self.candidates) {
            let judged = judge(&mut candidate);
            let counts =
                candidate.won() && self.store.bids.lives(candidate.claim.owner, &candidate.attempt);
            if !counts && (candidate.got_any() || poll.pending() > 0) {
                lost.push(Stray::of(&candidate));
            }
            ended.push((candidate, judged));
        }
        take_back(self.store, lost);
        if !all.is_empty() {
            late(self.store, poll, all, self.connections.clone());
        }
        ended
    }
}

impl Drop for Undecided<'_> {
    fn drop(&mut self) {
        take_back(self.store, self.candidates.iter().map(Stray::of).collect());
    }
}

impl Stray {
    fn of(candidate: &Candidate) -> Self {
        let Candidate { keys, claim, attempt, .. } = candidate;
        Self { keys: keys.clone(), owner: claim.owner, attempt: attempt.clone() }
    }
}

impl RedlockStore {
    /// Waits for answers that nobody needs: a request that is dropped makes its connection
    /// suspect.
    pub(super) fn drain(&self, mut poll: Poll) {
        if poll.pending() == 0 {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        poll.extend(LATEST);
        runtime.spawn(async move { while poll.next().await.is_some() {} });
    }

    fn releasing(&self, strays: &[Stray]) -> Call {
        let mut call = Call::new(&RELEASE, 0, 1 + 2 * strays.len());
        call.arg(&self.marker);
        for stray in strays {
            call.keys(&stray.keys, &[Line]);
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
fn take_back(store: &Arc<RedlockStore>, strays: Vec<Stray>) {
    let Ok(runtime) = Handle::try_current() else { return };
    if strays.is_empty() {
        return;
    }
    let mut poll = Poll::new(&store.nodes, store.releasing(&strays), LATEST);
    runtime.spawn(async move { while poll.next().await.is_some() {} });
}

/// Nodes that grant a claim after its vote: fine if the lease lives. What gave it back since
/// then came behind the claim, unless it took another connection: then it is taken back again.
fn late(store: &Arc<RedlockStore>, mut poll: Poll, strays: Vec<Stray>, connections: Arc<[u64]>) {
    let Ok(runtime) = Handle::try_current() else { return };
    let store = Arc::downgrade(store);
    poll.extend(LATEST);
    runtime.spawn(async move {
        while let Some((node, said)) = poll.next().await {
            let Some(store) = store.upgrade() else { return };
            let Said::Answers(answers) = said else {
                let mut nobody = vec![None; store.nodes.len()];
                store.note(node, &said, &mut nobody);
                continue;
            };
            if store.nodes[node].connection() == connections[node] {
                continue;
            }
            let granted = strays.iter().zip(&answers).filter(|(stray, answer)| {
                let granted = match answer {
                    Value::Int(1) => true,
                    Value::Array(parts) => parts.first() == Some(&Value::Int(1)),
                    _ => false,
                };
                granted && !store.bids.lives(stray.owner, &stray.attempt)
            });
            let granted: Vec<_> = granted.map(|(stray, _)| stray.clone()).collect();
            if !granted.is_empty() {
                store.nodes[node].ask(&store.releasing(&granted)).await;
            }
        }
    });
}
