//! Taking locks that are free, in the session that many share; and finding out how that ended.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use tokio_util::sync::{CancellationToken, DropGuard};

use super::key::Key;
use super::ledger::{CONTENDED_FOR, Ledger};
use super::lifeline::Lifeline;
use super::{SessionStore, admin, odd_answer, wait};
use crate::backend::{Claim, Grant, Verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Outcome, Result};

/// What to do about a claim.
enum Plan {
    Answer(Verdict),
    Try,
    Wait(Key, Claim),
}

/// A claim that was tried: its grant, or the claim again.
type Tried = std::result::Result<Grant, (Key, Claim)>;

pub(super) async fn acquire(store: Arc<SessionStore>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    let longest = claims.iter().map(|claim| claim.ttl).max().unwrap_or_default();
    let keyed = |claim: Claim| Key::of(&claim.name).map(|key| (key, claim));
    let claims = claims.into_iter().map(keyed).collect::<Result<Vec<(Key, Claim)>>>()?;
    let lifeline = store.shared(longest).await?;
    let (over, mut tried) = (CancellationToken::new(), Vec::with_capacity(claims.len()));
    let plans: Vec<Plan> = {
        let (mut ledger, now) = (store.ledger.lock(), store.clock.now());
        let plan = |keyed| plan(&mut ledger, keyed, &over, now, &mut tried);
        claims.into_iter().map(plan).collect()
    };
    let mut answers = Vec::new().into_iter();
    if !tried.is_empty() {
        // The server's answer goes into the ledger, also when the caller is gone.
        let trying = try_all(store.clone(), lifeline, tried, over.drop_guard());
        answers = store.carry_out(trying).await?.into_iter();
    }
    let mut verdicts = Vec::with_capacity(plans.len());
    for plan in plans {
        verdicts.push(match plan {
            Plan::Answer(verdict) => verdict,
            Plan::Wait(key, claim) => {
                wait::enqueue(&store, key, claim);
                Verdict::Queued(None)
            }
            Plan::Try => match answers.next() {
                Some(Ok(grant)) => Verdict::Granted(grant),
                Some(Err((key, claim))) => Box::pin(not_free(&store, key, claim)).await,
                None => return Err(odd_answer()),
            },
        });
    }
    Ok(verdicts)
}

/// What to do about a claim; one that is to be tried goes to those that are.
fn plan(
    ledger: &mut Ledger,
    (key, claim): (Key, Claim),
    over: &CancellationToken,
    now: Moment,
    tried: &mut Vec<(Key, Claim)>,
) -> Plan {
    let owner = claim.owner;
    if let Some(grant) = ledger.collect(owner) {
        return Plan::Answer(Verdict::Granted(grant));
    }
    if ledger.held.tombstones.has(owner, now) || ledger.asked.contains_key(&owner) {
        return Plan::Answer(Verdict::Held(None));
    }
    if ledger.waiting.contains_key(&owner) {
        return Plan::Answer(Verdict::Queued(None));
    }
    if claim.queue && ledger.contended.get(&key).is_some_and(|until| *until > now) {
        return Plan::Wait(key, claim);
    }
    match ledger.keys.entry(key) {
        Entry::Vacant(free) => {
            free.insert(owner);
            ledger.asked.insert(owner, over.clone());
            tried.push((key, claim));
            Plan::Try
        }
        // The session would get it a second time: locks of one session do not exclude each other.
        Entry::Occupied(_) if claim.queue => Plan::Wait(key, claim),
        Entry::Occupied(_) => {
            let by = ledger.on_key(key).map(|held| held.info(now).held_by);
            Plan::Answer(Verdict::Held(by))
        }
    }
}

/// Tries these, and enters what came of it. It is over when its guard is dropped.
async fn try_all(
    store: Arc<SessionStore>,
    lifeline: Arc<Lifeline>,
    tried: Vec<(Key, Claim)>,
    _over: DropGuard,
) -> Result<Vec<Tried>> {
    let keys: Vec<Key> = tried.iter().map(|(key, _)| *key).collect();
    let at = store.clock.now();
    let mut asked = lifeline.try_lock(&keys).await;
    if let Err(error) = &asked
        && error.outcome() == Outcome::NotApplied
        && lifeline.is_open()
    {
        // Advisory locks survive a statement that failed after it got them.
        let _ = Box::pin(lifeline.unlock_surely(&keys)).await;
    }
    let now = (store.clock.wall(), store.clock.now());
    let mut ledger = store.ledger.lock();
    if asked.is_ok() && !lifeline.is_open() {
        // Who noticed its end may have looked into the ledger before: nothing is held.
        let message = format!("the session at {} has ended", lifeline.session.place);
        asked = Err(Error::new(ErrorKind::Unreachable, message).not_applied());
    }
    for (_, claim) in &tried {
        ledger.asked.remove(&claim.owner);
    }
    let tokens = match asked {
        Ok(tokens) => tokens,
        Err(error) => {
            tried.iter().for_each(|(key, claim)| ledger.free(*key, claim.owner));
            return Err(error);
        }
    };
    let mut answers = Vec::with_capacity(tried.len());
    for ((key, claim), token) in tried.into_iter().zip(tokens) {
        answers.push(if let Some(token) = token {
            ledger.contended.remove(&key);
            Ok(ledger.hold((key, claim), token, at, &lifeline, now))
        } else {
            ledger.free(key, claim.owner);
            ledger.contended.insert(key, at + CONTENDED_FOR);
            Err((key, claim))
        });
    }
    drop(ledger);
    store.work.notify_one();
    Ok(answers)
}

/// Another has it: takes a place in the queue if the claim asks for that.
async fn not_free(store: &Arc<SessionStore>, key: Key, claim: Claim) -> Verdict {
    if claim.queue {
        wait::enqueue(store, key, claim);
        Verdict::Queued(admin::held_by(store, key).await)
    } else {
        Verdict::Held(admin::held_by(store, key).await)
    }
}

/// Is it mine? If not, it never will be.
pub(super) async fn settle(
    store: Arc<SessionStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    let mut grants = Vec::with_capacity(claims.len());
    for Claim { owner, ttl, .. } in claims {
        // What is under way is awaited: the session answers, or ends.
        let asked = store.ledger.lock().asked.get(&owner).cloned();
        if let Some(over) = asked {
            over.cancelled().await;
        }
        wait::stop_waiting(&store, owner).await;
        let mut ledger = store.ledger.lock();
        let grant = ledger.collect(owner);
        if grant.is_none() {
            ledger.held.tombstones.add(owner, ttl, store.clock.now());
        }
        grants.push(grant);
    }
    Ok(grants)
}
