//! Proving a lease and giving it back.

use std::sync::Arc;

use super::super::key::{Key, shown};
use super::claim::unlock_surely;
use super::insist::{Insist, insist};
use super::lifeline::Lifeline;
use super::table::Held;
use super::{SessionStore, verbs};
use crate::backend::{Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

impl SessionStore {
    pub(super) async fn renew_holds(self: &Arc<Self>, holds: &[Hold]) -> Result<Vec<Renewal>> {
        let found: Vec<Option<Held>> = {
            let table = self.table.lock();
            holds.iter().map(|hold| table.find(hold).cloned()).collect()
        };
        let mut proved = vec![None; holds.len()];
        let lines = found.iter().enumerate().filter_map(|(at, held)| Some((at, held.as_ref()?)));
        for (line, places) in by_line(lines) {
            let keys: Vec<Key> =
                places.iter().filter_map(|&at| Some(found[at].as_ref()?.key)).collect();
            let at = self.clock.now();
            match prove(&line, &keys).await {
                Ok(there) => {
                    for (place, there) in places.into_iter().zip(there) {
                        proved[place] = there.then_some(at);
                    }
                }
                // It has ended, and with it what it carried.
                Err(_) if !line.is_open() => {
                    self.table.lock().session_ended(&line, self.clock.now());
                }
                Err(error) => return Err(error),
            }
        }
        let lost: Vec<&Hold> = holds
            .iter()
            .zip(&proved)
            .filter(|(_, at)| at.is_none())
            .map(|(hold, _)| hold)
            .collect();
        let mut reasons =
            if lost.is_empty() { Vec::new() } else { self.why_lost(&lost).await }.into_iter();
        let mut table = self.table.lock();
        let verdict = |(hold, at): (&Hold, Option<crate::clock::Moment>)| match at {
            Some(at) => {
                let proof = Proof { at, valid_for: hold.ttl };
                // Two may be under way: an older proof takes nothing back.
                if let Some(held) = table.held.get_mut(&hold.owner)
                    && held.proof.at < at
                {
                    held.proof = proof;
                    held.claim.ttl = hold.ttl;
                    // So that others see it, too.
                    held.published = false;
                }
                Renewal::Renewed(proof)
            }
            None => Renewal::NotYours(reasons.next().unwrap_or(LossReason::Expired)),
        };
        Ok(holds.iter().zip(proved).map(verdict).collect())
    }

    /// Why these are not held: forced, where the record says so.
    async fn why_lost(&self, lost: &[&Hold]) -> Vec<LossReason> {
        let names: Vec<&str> = lost.iter().map(|hold| hold.name.as_str()).collect();
        let tokens: Vec<i64> = lost.iter().map(|hold| hold.token.get() as i64).collect();
        let asked = async {
            let session = self.aside.session().await?;
            session.rows(&verbs::AUDITED, &[&names, &tokens]).await
        };
        // Without an answer it is still certain that they are lost.
        let rows = asked.await.unwrap_or_default();
        let table = self.table.lock();
        let reason = |hold: &&Hold| {
            let record = rows.iter().find(|row| {
                row.get::<_, &str>(0) == hold.name.as_str()
                    && row.get::<_, i64>(1) == hold.token.get() as i64
            });
            match record {
                Some(row) => {
                    let forced = Forced::new(row.get::<_, String>(2), row.get::<_, String>(3));
                    LossReason::Forced(forced)
                }
                None if table.ended.contains_key(&hold.owner) => LossReason::SessionEnded,
                None => LossReason::Expired,
            }
        };
        lost.iter().map(reason).collect()
    }

    pub(super) async fn release_holds(self: Arc<Self>, holds: Vec<Hold>) -> Result<Vec<Release>> {
        if let [hold] = &holds[..] {
            return Ok(vec![self.release_one(hold).await?]);
        }
        let mut given = Vec::with_capacity(holds.len());
        let ours: Vec<bool> = {
            let mut table = self.table.lock();
            let mut take = |hold: &Hold| {
                let ours = table.find(hold).is_some();
                given.extend(if ours { table.remove(hold.owner) } else { None });
                ours
            };
            holds.iter().map(&mut take).collect()
        };
        let mut given_back = Vec::new().into_iter();
        if !given.is_empty() {
            given_back = give_back(&self, given).await?.into_iter();
        }
        let verdict = |ours: bool| match ours && given_back.next() == Some(true) {
            true => Release::Released,
            false => Release::NotHeld,
        };
        Ok(ours.into_iter().map(verdict).collect())
    }

    /// One alone, as it is when a lock is handed on: without the tables for many.
    async fn release_one(self: &Arc<Self>, hold: &Hold) -> Result<Release> {
        let held = {
            let mut table = self.table.lock();
            let ours = table.find(hold).is_some();
            ours.then(|| table.remove(hold.owner)).flatten()
        };
        let Some(held) = held else { return Ok(Release::NotHeld) };
        let had = insist(unlock_one(self.clone(), held)).await?;
        Ok(if had { Release::Released } else { Release::NotHeld })
    }
}

/// pgbouncer#102: look at the result of an unlock, always.
fn note(held: &Held, had: bool) {
    if !had {
        tracing::warn!(lock = %held.claim.name, "the session had not the lock it released");
    }
}

/// Unlocks one lease that was taken out of the table; whether it was still held.
async fn unlock_one(store: Arc<SessionStore>, held: Held) -> Result<bool> {
    let unlocked = unlock_surely(&held.line, &[held.key]).await;
    let mut table = store.table.lock();
    table.unlocked(&held);
    let had = unlocked?.first() == Some(&true);
    note(&held, had);
    if !held.shared {
        table.keep_spare(held.line);
    }
    Ok(had)
}

/// Unlocks what was taken out of the table; whether each was still held. It is done, also
/// when the caller is gone.
pub(super) fn give_back(store: &Arc<SessionStore>, given: Vec<Held>) -> Insist<Result<Vec<bool>>> {
    let store = store.clone();
    insist(async move { unlock_all(&store, &given).await })
}

async fn unlock_all(store: &SessionStore, given: &[Held]) -> Result<Vec<bool>> {
    let mut done = vec![false; given.len()];
    let mut failed = None;
    for (line, places) in by_line(given.iter().enumerate()) {
        let keys: Vec<Key> = places.iter().map(|&at| given[at].key).collect();
        let unlocked = unlock_surely(&line, &keys).await;
        let mut table = store.table.lock();
        for &at in &places {
            table.unlocked(&given[at]);
        }
        match unlocked {
            Ok(unlocked) => {
                for (&at, had) in places.iter().zip(unlocked) {
                    done[at] = had;
                    note(&given[at], had);
                }
                if places.iter().all(|&at| !given[at].shared) {
                    table.keep_spare(line);
                }
            }
            Err(error) => failed = Some(error),
        }
    }
    failed.map_or(Ok(done), Err)
}

/// Whether the session has each of these keys.
pub(super) async fn prove(line: &Lifeline, keys: &[Key]) -> Result<Vec<bool>> {
    let (high, low, form) = shown(keys.iter().copied());
    let row = line.session.row(&verbs::PROVE, &[&high, &low, &form]).await?;
    Ok(row.get(0))
}

/// The places of these leases, by the session that carries them.
fn by_line<'a>(held: impl Iterator<Item = (usize, &'a Held)>) -> Vec<(Arc<Lifeline>, Vec<usize>)> {
    let mut lines: Vec<(Arc<Lifeline>, Vec<usize>)> = Vec::new();
    for (at, held) in held {
        match lines.iter_mut().find(|(line, _)| Arc::ptr_eq(line, &held.line)) {
            Some((_, places)) => places.push(at),
            None => lines.push((held.line.clone(), vec![at])),
        }
    }
    lines
}
