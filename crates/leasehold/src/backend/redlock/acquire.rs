//! Claims: the vote on a lock, in one round trip if the guess is good, and in two if not.

use std::mem;
use std::sync::Arc;
use std::time::Duration;

use super::Companion::{Record, RedlockQueue};
use super::attempt::{Attempt, Candidate, Vote, withdraw};
use super::ledger::Admission;
use super::poll::Poll;
use super::script::{CLAIM, STORE};
use super::votes::{Decision, NodeVerdicts, Round, Votes};
use super::{Call, RedlockStore, Value, encode_holder, hold, millis};
use crate::backend::{Claim, Grant, Proof, Renewal, Verdict};
use crate::clock::Moment;
use crate::error::Result;
use crate::holder::HeldBy;
use crate::token::Token;

/// How often a claim that does not wait is voted on again when nobody got a majority.
const TRIES: u32 = 8;
/// The longest first pause after a split vote; it doubles, and each is cut at random.
const PAUSE: Duration = Duration::from_millis(4);
/// The longest of those pauses.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// How often a waiter looks for itself.
const LONGEST_POLL: Duration = Duration::from_secs(1);
const SHORTEST_POLL: Duration = Duration::from_millis(20);

/// How a vote ended.
enum Ended {
    Won(Grant),
    /// Another has it, or will have.
    Held(HeldBy, Option<Duration>),
    /// Nobody got a majority.
    Split,
    /// Nodes were in another epoch, which we know by now.
    Stale,
    /// Too few nodes vote.
    NoMajority(NodeVerdicts),
}

pub(super) async fn acquire(store: Arc<RedlockStore>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    let mut verdicts: Vec<Option<Verdict>> = vec![None; claims.len()];
    let mut next: Vec<(usize, Claim)> = claims.into_iter().enumerate().collect();
    let mut failed = None;
    for round in 0..TRIES {
        let candidates = admit(&store, mem::take(&mut next), &mut verdicts).await?;
        if candidates.is_empty() {
            break;
        }
        let last = round + 1 == TRIES;
        let mut paused = false;
        for (candidate, ended) in vote(&store, candidates).await? {
            let Candidate { place, claim, attempt, .. } = candidate;
            let (by, pause) = match ended {
                Ended::Won(grant) => {
                    verdicts[place] = Some(Verdict::Granted(grant));
                    continue;
                }
                Ended::NoMajority(said) => {
                    store.ledger.end(claim.owner, &attempt.id);
                    failed = Some(said);
                    continue;
                }
                Ended::Stale if !last => {
                    paused |= round > 0;
                    next.push((place, claim));
                    continue;
                }
                Ended::Split if !last && !claim.queue => {
                    paused = true;
                    next.push((place, claim));
                    continue;
                }
                Ended::Held(by, left) => (Some(by), poll_after(&claim, left)),
                Ended::Split | Ended::Stale => (None, jittered(store.ledger.splits(claim.owner))),
            };
            verdicts[place] = Some(if claim.queue {
                store.ledger.wait(claim.owner, &attempt.id, store.clock.now() + pause);
                Verdict::Queued(by)
            } else {
                store.ledger.end(claim.owner, &attempt.id);
                Verdict::Held(by)
            });
        }
        if paused {
            store.clock.sleep(jittered(round)).await;
        }
    }
    if let Some(said) = failed {
        let error = said.no_majority();
        // Of those that failed nothing is left, and nothing will be; but others of the
        // same request have their locks.
        let mixed = verdicts.iter().any(Option::is_some);
        return Err(if mixed { error.outcome_unknown() } else { error });
    }
    Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Held(None))).collect())
}

/// The grants that are proved; all other claims are given up.
pub(super) async fn settle(
    store: Arc<RedlockStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    let now = store.clock.now();
    let mut settled = Vec::with_capacity(claims.len());
    let mut given_up = Vec::new();
    for claim in claims {
        let grant = match store.ledger.settle(&claim, now) {
            Some(token) => prove(&store, &claim, token).await?,
            None => None,
        };
        if grant.is_none() {
            store.ledger.give_up(&claim, now);
            given_up.push(claim);
        }
        settled.push(grant);
    }
    if !given_up.is_empty() {
        withdraw(&store, &given_up).await?;
    }
    Ok(settled)
}

/// The grant of a claim that has the lock, if it still has it.
async fn prove(store: &Arc<RedlockStore>, claim: &Claim, token: Token) -> Result<Option<Grant>> {
    Ok(match hold::renew(store.clone(), vec![claim.hold(token)]).await?.pop() {
        Some(Renewal::Renewed(proof)) => Some(Grant { token, proof }),
        _ => None,
    })
}

/// The claims that may be voted on; the others are answered at once.
async fn admit(
    store: &Arc<RedlockStore>,
    claims: Vec<(usize, Claim)>,
    verdicts: &mut [Option<Verdict>],
) -> Result<Vec<Candidate>> {
    let now = store.clock.now();
    let mut candidates = Vec::with_capacity(claims.len());
    for (place, claim) in claims {
        let mut admission = store.ledger.begin(&claim, now);
        if let Admission::Granted(token) = admission {
            if let Some(grant) = prove(store, &claim, token).await? {
                verdicts[place] = Some(Verdict::Granted(grant));
                continue;
            }
            store.ledger.forget(claim.owner);
            admission = store.ledger.begin(&claim, now);
        }
        let Admission::Attempt(id) = admission else {
            verdicts[place] = Some(Verdict::Held(None));
            continue;
        };
        let attempt = Attempt { keys: store.keys(&claim.name), owner: claim.owner, id };
        candidates.push(Candidate {
            place,
            claim,
            attempt: Arc::new(attempt),
            votes: Votes::default(),
            decision: Decision::Open,
            token: store.guess(),
        });
    }
    Ok(candidates)
}

async fn vote(
    store: &Arc<RedlockStore>,
    candidates: Vec<Candidate>,
) -> Result<Vec<(Candidate, Ended)>> {
    let (at, wall) = (store.clock.now(), store.clock.wall_micros());
    let items = candidates.len()..=candidates.len();
    let limit = store.limit(candidates.iter().map(|candidate| candidate.claim.ttl));
    let mut vote = Vote::new(store, candidates);
    let mut round = Round::new(store);
    let mut poll = Poll::new(&store.nodes, claiming(store, &vote.candidates), limit);
    while vote.candidates.iter().any(Candidate::is_open)
        && let Some((node, given)) = round.next(&mut poll, items.clone()).await
    {
        if let Some(given) = given {
            for (candidate, answer) in vote.candidates.iter_mut().zip(&given) {
                candidate.votes.hear(node, answer, candidate.token)?;
            }
        }
        let pending = poll.pending();
        for candidate in vote.candidates.iter_mut().filter(|candidate| candidate.is_open()) {
            candidate.decision = candidate.votes.decide(pending, store.majority);
        }
    }
    store_tokens(&mut round, &mut vote.candidates).await;
    let ended = vote.decided(poll, |candidate| {
        if let Some(clock) = candidate.votes.clock(store.majority) {
            store.learn_clock(clock, wall);
        }
        store.learn_token(candidate.token);
        judge(&round, candidate, at)
    });
    Ok(ended)
}

/// The second round trip, for claims that have a majority of locks but no token yet.
async fn store_tokens(round: &mut Round<'_>, candidates: &mut [Candidate]) {
    let store = round.store;
    let needs_token = |candidate: &&mut Candidate| candidate.decision == Decision::NeedsToken;
    let mut storing: Vec<_> = candidates.iter_mut().filter(needs_token).collect();
    let Some(first) = storing.first() else { return };
    let who = who(store, first);
    for candidate in &mut storing {
        candidate.token = candidate.votes.next_token(candidate.token);
        candidate.votes.stored = 0;
        candidate.decision = Decision::Open;
    }
    let mut call = store.call(&STORE, 2 * storing.len());
    for candidate in &storing {
        call.keys(&candidate.attempt.keys, &[Record]);
    }
    call.arg(store.expected()).arg(who);
    for candidate in &storing {
        call.arg(&candidate.attempt.id).arg(candidate.token).arg(millis(candidate.claim.ttl));
    }
    let items = storing.len()..=storing.len();
    let limit = store.limit(storing.iter().map(|candidate| candidate.claim.ttl));
    // All nodes: where the claim arrives late, the token comes right behind it.
    let mut poll = Poll::new(&store.nodes, call, limit);
    while storing.iter().any(|candidate| candidate.is_open())
        && let Some((_, given)) = round.next(&mut poll, items.clone()).await
    {
        let pending = poll.pending();
        for (item, candidate) in storing.iter_mut().enumerate() {
            if given.as_ref().and_then(|given| given.get(item)) == Some(&Value::Int(1)) {
                candidate.votes.stored += 1;
            }
            let stored = candidate.votes.stored;
            if stored >= store.majority {
                candidate.decision = Decision::Won;
            } else if stored + pending < store.majority {
                candidate.decision = Decision::Lost;
            }
        }
    }
}

fn judge(round: &Round<'_>, candidate: &Candidate, at: Moment) -> Ended {
    let Candidate { claim, votes, .. } = candidate;
    let store = round.store;
    if candidate.decision == Decision::Won {
        let token = Token::new(candidate.token);
        if store.ledger.grant(claim.owner, &candidate.attempt.id, token) {
            let valid_for = Duration::from_millis(millis(claim.ttl));
            return Ended::Won(Grant { token, proof: Proof { at, valid_for } });
        }
        return Ended::Held(HeldBy::new(None, None), None);
    }
    if votes.answered() < store.majority {
        if round.stale {
            return Ended::Stale;
        }
        return Ended::NoMajority(round.verdicts(|node| votes.is_taken_at(node)));
    }
    let silent = store.nodes.len() - votes.answered();
    match votes.holder(silent, store.majority) {
        Some((by, left)) => Ended::Held(by, left),
        None => Ended::Split,
    }
}

fn claiming(store: &RedlockStore, candidates: &[Candidate]) -> Call {
    let mut call = store.call(&CLAIM, 3 * candidates.len());
    for candidate in candidates {
        call.companion(&candidate.attempt.keys, Record);
    }
    for candidate in candidates {
        call.arg(&candidate.attempt.keys.lock);
    }
    for candidate in candidates {
        call.companion(&candidate.attempt.keys, RedlockQueue);
    }
    call.arg(store.expected()).arg(who(store, &candidates[0]));
    // Mostly they have these in common.
    let terms = |one: &Candidate| (millis(one.claim.ttl), u8::from(one.claim.queue));
    let first = terms(&candidates[0]);
    let common = candidates.iter().all(|one| terms(one) == first);
    if common {
        call.arg(first.0).arg(first.1);
    } else {
        call.arg("").arg("");
    }
    for candidate in candidates {
        call.arg(&candidate.attempt.id).arg(candidate.token);
    }
    if !common {
        for (ttl, queue) in candidates.iter().map(terms) {
            call.arg(ttl).arg(queue);
        }
    }
    call
}

/// Where messages reach us, and who holds the locks: one client has one holder.
fn who(store: &RedlockStore, candidate: &Candidate) -> String {
    format!("{} {}", store.channel, encode_holder(&candidate.claim.holder))
}

/// When a waiter looks again by itself: soon after the lock may be free, and often enough
/// to be seen.
fn poll_after(claim: &Claim, left: Option<Duration>) -> Duration {
    let regular = (claim.ttl / 3).clamp(SHORTEST_POLL, LONGEST_POLL);
    match left {
        Some(left) => regular.min(left + jittered(0)).max(Duration::from_millis(1)),
        None => regular,
    }
}

/// Full jitter: anything between nothing and a bound that doubles.
fn jittered(attempt: u32) -> Duration {
    let bound = PAUSE.saturating_mul(1 << attempt.min(10)).min(LONGEST_PAUSE);
    Duration::from_micros(fastrand::u64(1..=bound.as_micros().max(1) as u64))
}
