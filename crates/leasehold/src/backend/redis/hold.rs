//! Holds: proving, extending and giving back what is held.

use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use super::connection::Value;
use super::keys::Companion::{Forced as ForcedKey, Queue, Record};
use super::script::{Call, REASON, RELEASE, RENEW, items, millis, number, parts, text};
use super::topology::Located;
use crate::backend::{Claim, Grant, Hint, Hold, Proof, Release, Renewal};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::loss::{Forced, LossReason};

/// How long a WAIT waits at most. Two of them have to fit into the time that a request has.
const LONGEST_WAIT: Duration = Duration::from_millis(500);

pub(super) async fn renew(store: Arc<RedisStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let holds = store.locate(holds, |hold| &hold.name);
    store.topology.by_slot(holds, |some| renew_in_slot(&store, some)).await
}

async fn renew_in_slot(store: &RedisStore, holds: Vec<Located<Hold>>) -> Result<Vec<Renewal>> {
    let at = store.clock.now();
    let answers = items(store.topology.call(&renewal(&holds)).await?, holds.len())?;
    let mut renewals = Vec::with_capacity(holds.len());
    let (mut lost, mut places) = (Vec::new(), Vec::new());
    for (place, (hold, answer)) in holds.iter().zip(&answers).enumerate() {
        if number(answer)? == 1 {
            renewals.push(Renewal::Renewed(proof(at, hold.1.ttl)));
        } else {
            lost.push(hold);
            places.push(place);
            renewals.push(Renewal::NotYours(LossReason::Expired));
        }
    }
    if !lost.is_empty() {
        // They are lost in any case; only the reason needs an answer.
        let reasons = reasons(store, &lost).await.unwrap_or_default();
        for (place, reason) in places.into_iter().zip(reasons) {
            renewals[place] = Renewal::NotYours(reason);
        }
    }
    Ok(renewals)
}

/// A call that renews all of these, which are in one slot where slots matter.
fn renewal(holds: &[Located<Hold>]) -> Call {
    let mut call = Call::new(&RENEW, holds[0].0.slot, 2 * holds.len());
    for (keys, _) in holds {
        call.keys(keys, &[Record]);
    }
    for (_, hold) in holds {
        call.arg(hold.owner).arg(hold.token).arg(millis(hold.ttl));
    }
    call
}

async fn reasons(store: &RedisStore, lost: &[&Located<Hold>]) -> Result<Vec<LossReason>> {
    let mut call = Call::new(&REASON, lost[0].0.slot, 2 * lost.len());
    for (keys, _) in lost {
        call.keys(keys, &[ForcedKey]);
    }
    for (_, hold) in lost {
        call.arg(hold.token);
    }
    let answers = items(store.topology.call(&call).await?, lost.len())?;
    let reasons = answers.iter().map(|answer| match answer {
        Value::Int(0) => Ok(LossReason::Expired),
        Value::Int(_) => Ok(LossReason::Taken),
        forced => {
            let [by, reason] = parts(forced)?;
            Ok(LossReason::Forced(Forced::new(text(by)?, text(reason)?)))
        }
    });
    reasons.collect()
}

pub(super) async fn release(store: Arc<RedisStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    let holds = store.locate(holds, |hold| &hold.name);
    store.topology.by_slot(holds, |some| release_in_slot(&store, some)).await
}

async fn release_in_slot(store: &RedisStore, holds: Vec<Located<Hold>>) -> Result<Vec<Release>> {
    let mut call = Call::new(&RELEASE, holds[0].0.slot, 3 * holds.len());
    for (keys, _) in &holds {
        call.keys(keys, &[Record, Queue]);
    }
    for (_, hold) in &holds {
        call.arg(hold.owner).arg(hold.token);
    }
    let answers = items(store.topology.call(&call).await?, holds.len())?;
    let verdicts = answers
        .iter()
        .map(|answer| Ok(if number(answer)? == 1 { Release::Released } else { Release::NotHeld }));
    verdicts.collect()
}

pub(super) async fn hint(store: Arc<RedisStore>) -> Result<Hint> {
    Ok(store.waiters.hints.next().await)
}

/// Waits until enough replicas have what was granted, however it came about: by a claim, by a
/// turn in the queue, or found by settling. Otherwise all of it is given back, and the error
/// says that the outcome is unknown: the caller settles, which finds what is left.
///
/// All claims are in one slot, where slots matter.
pub(super) async fn replicate(
    store: &RedisStore,
    granted: Vec<(&Located<Claim>, &mut Grant)>,
) -> Result<()> {
    if granted.is_empty() {
        return Ok(());
    }
    let hold = |((keys, claim), grant): &(&Located<Claim>, &mut Grant)| {
        (keys.clone(), claim.hold(grant.token))
    };
    let holds: Vec<_> = granted.iter().map(hold).collect();
    let at = store.clock.now();
    let error = match are_replicated(store, &holds).await {
        Ok(true) => {
            for ((_, claim), grant) in granted {
                grant.proof = proof(at, claim.ttl);
            }
            return Ok(());
        }
        Ok(false) => Error::new(ErrorKind::Unavailable, "the lease ended before replicas had it"),
        Err(error) => error,
    };
    // If this fails as well, the caller's settling releases it.
    let _ = release_in_slot(store, holds).await;
    Err(error.outcome_unknown())
}

/// Whether all of these are still held. An error if too few replicas have them.
async fn are_replicated(store: &RedisStore, holds: &[Located<Hold>]) -> Result<bool> {
    let wanted = store.settings.wait_replicas;
    let limit = (store.settings.timeout / 4).min(LONGEST_WAIT);
    let not_asked = |error: Error| {
        let message = "the replicas could not be asked whether they have the lease: it was \
                       given back; wait-replicas needs a second connection to the master";
        Error::new(error.kind().clone(), message).caused_by(error)
    };
    let replicas = store.topology.replicas(holds[0].0.slot).await.map_err(not_asked)?;
    let confirmed = replicas.confirm(renewal(holds), wanted, limit).await;
    let (renewed, count) = confirmed.map_err(|failure| not_asked(failure.into()))?;
    for answer in items(renewed, holds.len())? {
        if number(&answer)? == 0 {
            return Ok(false);
        }
    }
    if count < wanted {
        let message = format!(
            "only {count} of {wanted} replicas had the lease in time: it was given back; \
             see to the replicas, or lower wait-replicas"
        );
        return Err(Error::new(ErrorKind::Unavailable, message));
    }
    Ok(true)
}

/// The proof of a request that was sent at this moment.
pub(super) fn proof(at: Moment, ttl: Duration) -> Proof {
    Proof { at, valid_for: Duration::from_millis(millis(ttl)) }
}
