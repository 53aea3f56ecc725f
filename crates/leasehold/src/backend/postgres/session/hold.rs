//! Proving leases and giving them back.

use std::sync::Arc;

use super::key::Key;
use super::ledger::Held;
use super::lifeline::Lifeline;
use super::{SessionStore, statements};
use crate::backend::{Hint, Hold, Proof, Release, Renewal};
use crate::clock::Moment;
use crate::error::Result;
use crate::loss::{Forced, LossReason};

pub(super) async fn renew(store: Arc<SessionStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let sessions = {
        let ledger = store.ledger.lock();
        by_session(holds.iter().map(|hold| ledger.held.find(hold)))
    };
    let mut proved = vec![None; holds.len()];
    for (lifeline, places, keys) in sessions {
        let at = store.clock.now();
        match lifeline.prove(&keys).await {
            Ok(there) => {
                for (place, there) in places.into_iter().zip(there) {
                    proved[place] = there.then_some(at);
                }
            }
            // It has ended, and with it what it carried.
            Err(_) if !lifeline.is_open() => {
                store.ledger.lock().session_ended(&lifeline, store.clock.now());
            }
            Err(error) => return Err(error),
        }
    }
    let lost = holds.iter().zip(&proved).filter(|(_, at)| at.is_none());
    let lost: Vec<&Hold> = lost.map(|(hold, _)| hold).collect();
    let mut reasons = why_lost(&store, &lost).await.into_iter();
    let mut ledger = store.ledger.lock();
    let verdict = |(hold, at): (&Hold, Option<Moment>)| {
        let Some(at) = at else {
            return Renewal::NotYours(reasons.next().unwrap_or(LossReason::Expired));
        };
        let proof = Proof { at, valid_for: hold.ttl };
        // Given up meanwhile, it was proved all the same.
        let _ = ledger.held.update(hold.owner, |held| {
            // Two may be under way: an older proof takes nothing back.
            if held.grant.proof.at < at {
                held.grant.proof = proof;
                held.claim.ttl = hold.ttl;
                // So that others see it, too.
                held.published = false;
            }
        });
        Renewal::Renewed(proof)
    };
    Ok(holds.iter().zip(proved).map(verdict).collect())
}

/// Why these are not held: forced, where the record says so.
async fn why_lost(store: &SessionStore, lost: &[&Hold]) -> Vec<LossReason> {
    if lost.is_empty() {
        return Vec::new();
    }
    let names: Vec<&str> = lost.iter().map(|hold| hold.name.as_str()).collect();
    let tokens: Vec<i64> = lost.iter().map(|hold| hold.token.get() as i64).collect();
    let asked = async {
        let session = store.observer.session().await?;
        session.rows(&statements::AUDITED, &[&names, &tokens]).await
    };
    // Without an answer it is still certain that they are lost.
    let rows = asked.await.unwrap_or_default();
    let ledger = store.ledger.lock();
    let reason = |hold: &&Hold| {
        let lease = (hold.name.as_str(), hold.token.get() as i64);
        match rows.iter().find(|row| (row.get::<_, &str>(0), row.get::<_, i64>(1)) == lease) {
            Some(row) => {
                LossReason::Forced(Forced::new(row.get::<_, String>(2), row.get::<_, String>(3)))
            }
            None if ledger.ended.contains_key(&hold.owner) => LossReason::SessionEnded,
            None => LossReason::Expired,
        }
    };
    lost.iter().map(reason).collect()
}

pub(super) async fn release(store: Arc<SessionStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    let taken: Vec<Option<Held>> = {
        let mut ledger = store.ledger.lock();
        holds.iter().map(|hold| ledger.take(hold)).collect()
    };
    let ours: Vec<bool> = taken.iter().map(Option::is_some).collect();
    let mut had = give_back(&store, taken.into_iter().flatten().collect()).await?.into_iter();
    let verdict = |ours: bool| match ours && had.next() == Some(true) {
        true => Release::Released,
        false => Release::NotHeld,
    };
    Ok(ours.into_iter().map(verdict).collect())
}

/// Unlocks what was taken out of the ledger, also when the caller is gone; whether each was
/// still held.
pub(super) async fn give_back(store: &Arc<SessionStore>, given: Vec<Held>) -> Result<Vec<bool>> {
    if given.is_empty() {
        return Ok(Vec::new());
    }
    store.carry_out(unlock_all(store.clone(), given)).await
}

async fn unlock_all(store: Arc<SessionStore>, given: Vec<Held>) -> Result<Vec<bool>> {
    let mut done = vec![false; given.len()];
    let mut failed = None;
    for (lifeline, places, keys) in by_session(given.iter().map(Some)) {
        let unlocked = lifeline.unlock_surely(&keys).await;
        let mut ledger = store.ledger.lock();
        for &at in &places {
            ledger.free(given[at].key, given[at].claim.owner);
        }
        let unlocked = match unlocked {
            Ok(unlocked) => unlocked,
            Err(error) => {
                failed = Some(error);
                continue;
            }
        };
        for (at, had) in places.into_iter().zip(unlocked) {
            done[at] = had;
            // pgbouncer#102: look at the result of an unlock, always.
            if !had {
                let lock = &given[at].claim.name;
                tracing::warn!(%lock, "the session had not the lock it released");
            }
        }
        if !lifeline.shared {
            ledger.keep_idle(lifeline);
        }
    }
    failed.map_or(Ok(done), Err)
}

/// Leases by the session that carries them: their places, and their keys.
fn by_session<'a>(
    leases: impl Iterator<Item = Option<&'a Held>>,
) -> Vec<(Arc<Lifeline>, Vec<usize>, Vec<Key>)> {
    let mut sessions: Vec<(Arc<Lifeline>, Vec<usize>, Vec<Key>)> = Vec::new();
    for (place, held) in leases.enumerate() {
        let Some(Held { lifeline, key, .. }) = held else { continue };
        match sessions.iter_mut().find(|(known, ..)| Arc::ptr_eq(known, lifeline)) {
            Some((_, places, keys)) => {
                places.push(place);
                keys.push(*key);
            }
            None => sessions.push((lifeline.clone(), vec![place], vec![*key])),
        }
    }
    sessions
}

pub(super) async fn hint(store: Arc<SessionStore>) -> Result<Hint> {
    Ok(store.hints.next().await)
}
