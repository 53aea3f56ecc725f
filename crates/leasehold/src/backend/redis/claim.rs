//! Claims: taking locks and places in line, and asking what became of them.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::RedisStore;
use super::answer::{Record, bytes, items, left, number, text, token};
use super::batch::{Located, by_slot};
use super::error::unexpected;
use super::keys::Companion::{Queue, Record as RecordKey};
use super::script::{ACQUIRE, Call, LEAVE, SETTLE};
use crate::backend::{Claim, Grant, Proof, Turn, Verdict};
use crate::clock::Moment;
use crate::error::Result;
use crate::holder::HeldBy;

/// In place of a number, for claims that do not queue.
const NOT_QUEUED: u64 = 0;
/// In place of what is left of a lock's key that never expires.
const NEVER_EXPIRES: i64 = -3;
/// For how long at least an owner stays barred whose claim may still be on its way.
const SHORTEST_BAR: Duration = Duration::from_secs(60);

impl RedisStore {
    pub(in crate::backend) async fn claim(&self, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        let claims = self.locate(claims, |claim| &claim.name);
        for (keys, _) in &claims {
            keys.check()?;
        }
        let matter = self.route.slots_matter();
        if self.settings.wait_replicas == 0 {
            return by_slot(claims, matter, |some| self.claim_in_slot(some)).await;
        }
        Box::pin(by_slot(claims, matter, |some| self.claim_with_replicas(some))).await
    }

    async fn claim_with_replicas(&self, claims: Vec<Located<Claim>>) -> Result<Vec<Verdict>> {
        let mut verdicts = self.claim_in_slot(claims.clone()).await?;
        let granted = claims.iter().zip(&mut verdicts).filter_map(|(claim, verdict)| {
            let Verdict::Granted(grant) = verdict else { return None };
            Some((claim, grant))
        });
        self.replicate(granted.collect()).await?;
        Ok(verdicts)
    }

    async fn claim_in_slot(&self, claims: Vec<Located<Claim>>) -> Result<Vec<Verdict>> {
        let Some((keys, first)) = claims.first() else { return Ok(Vec::new()) };
        let slot = keys.slot;
        let mut call = Call::new(&ACQUIRE, slot, 4 * claims.len());
        for (keys, claim) in &claims {
            call.keys(keys, &[RecordKey, Queue]);
            call.bar(keys, claim.owner);
        }
        // A batch is of one client, which has one holder.
        call.arg(self.who(slot, &first.holder));
        let number = self.waiters.next_number();
        for (_, claim) in &claims {
            let number = if claim.queue { number } else { NOT_QUEUED };
            call.owner(claim.owner).arg(millis(claim.ttl)).arg(number);
            // Before it is registered: who was not yet is new to the line, and not looked for.
            call.arg(self.waiters.said(claim.owner));
        }
        let at = self.clock.now();
        let asked = claims.iter().map(|(_, claim)| claim);
        let mut registered = self.waiters.register(asked, number, at);
        let answers = items(self.route.call(&call).await?, claims.len())?;
        registered.answered();
        let mut verdicts = Vec::with_capacity(claims.len());
        for ((keys, claim), answer) in claims.iter().zip(answers) {
            let verdict = match answer {
                Value::Int(granted) => Verdict::Granted(grant(granted, at, claim)?),
                Value::Array(parts) => match &parts[..] {
                    [Value::Int(1), left_for, holds, record, seen] => {
                        registered.keep(claim.owner);
                        let free_in = left(self::number(left_for)?);
                        self.has_place((keys.slot, claim), text(seen)?, number, free_in);
                        Verdict::Queued(held_by(left_for, holds, record)?)
                    }
                    [Value::Int(0), left_for, holds, record] => {
                        Verdict::Held(held_by(left_for, holds, record)?)
                    }
                    _ => return Err(unexpected()),
                },
                _ => return Err(unexpected()),
            };
            verdicts.push(verdict);
        }
        Ok(verdicts)
    }

    fn has_place(
        &self,
        (slot, claim): (u16, &Claim),
        seen: &str,
        number: u64,
        free_in: Option<Duration>,
    ) {
        let Some(waiter) = self.waiters.get(claim.owner) else { return };
        let now = self.clock.now();
        waiter.seen(seen, number, now, free_in);
        if !self.route.listens(slot) {
            // The message of a grant would not be heard: listen first, then ask again.
            waiter.beat_now(now);
        }
    }

    pub(in crate::backend) async fn wait_for_turn(self: &Arc<Self>, claim: Claim) -> Result<Turn> {
        // Nothing is known of a place that was given up, or never taken.
        let Some(waiter) = self.waiters.get(claim.owner) else { return Ok(Turn::TryAgain) };
        let mut turn = waiter.turn(&self.waiters).await;
        // Who asks again is still in line, as far as we know.
        if let Turn::Granted(_) = turn {
            self.waiters.forget(claim.owner);
        }
        if let (Turn::Granted(grant), true) = (&mut turn, self.settings.wait_replicas > 0) {
            let claim = (self.keys(&claim.name), claim);
            Box::pin(self.replicate(vec![(&claim, grant)])).await?;
        }
        Ok(turn)
    }

    pub(in crate::backend) async fn leave_line(&self, claim: Claim) -> Result<()> {
        let said = self.waiters.said(claim.owner);
        self.waiters.forget(claim.owner);
        let keys = self.keys(&claim.name);
        let mut call = Call::new(&LEAVE, keys.slot, 3);
        call.keys(&keys, &[RecordKey, Queue]);
        call.arg(self.who(keys.slot, &claim.holder));
        call.owner(claim.owner).arg(millis(claim.ttl)).arg(said);
        self.route.call(&call).await.map(drop)
    }

    pub(in crate::backend) async fn settle_claims(
        &self,
        claims: Vec<Claim>,
    ) -> Result<Vec<Option<Grant>>> {
        let claims = self.locate(claims, |claim| &claim.name);
        let matter = self.route.slots_matter();
        if self.settings.wait_replicas == 0 {
            return by_slot(claims, matter, |some| self.settle_in_slot(some)).await;
        }
        Box::pin(by_slot(claims, matter, |some| self.settle_with_replicas(some))).await
    }

    async fn settle_with_replicas(
        &self,
        claims: Vec<Located<Claim>>,
    ) -> Result<Vec<Option<Grant>>> {
        let mut grants = self.settle_in_slot(claims.clone()).await?;
        let granted = claims.iter().zip(&mut grants);
        let granted = granted.filter_map(|(claim, grant)| Some((claim, grant.as_mut()?)));
        self.replicate(granted.collect()).await?;
        Ok(grants)
    }

    async fn settle_in_slot(&self, claims: Vec<Located<Claim>>) -> Result<Vec<Option<Grant>>> {
        let Some((keys, first)) = claims.first() else { return Ok(Vec::new()) };
        let mut call = Call::new(&SETTLE, keys.slot, 4 * claims.len());
        for (keys, claim) in &claims {
            call.keys(keys, &[RecordKey, Queue]);
            call.bar(keys, claim.owner);
        }
        call.arg(self.who(keys.slot, &first.holder));
        for (_, claim) in &claims {
            let bar = claim.ttl.max(SHORTEST_BAR);
            call.owner(claim.owner).arg(millis(claim.ttl)).arg(millis(bar));
            call.arg(self.waiters.said(claim.owner));
            self.waiters.forget(claim.owner);
        }
        let at = self.clock.now();
        let answers = items(self.route.call(&call).await?, claims.len())?;
        let settled =
            claims.iter().zip(&answers).map(|((_, claim), answer)| match number(answer)? {
                0 => Ok(None),
                granted => grant(granted, at, claim).map(Some),
            });
        settled.collect()
    }
}

/// A grant of its whole TTL, asked for at this moment.
fn grant(granted: i64, at: Moment, claim: &Claim) -> Result<Grant> {
    let valid_for = Duration::from_millis(millis(claim.ttl));
    Ok(Grant { token: token(granted)?, proof: Proof { at, valid_for } })
}

fn held_by(left_for: &Value, holds: &Value, record: &Value) -> Result<Option<HeldBy>> {
    let known = Record::of(record, bytes(holds)?);
    let by = known.map_or_else(|| HeldBy::new(None, None), |known| known.held_by);
    Ok(Some(if number(left_for)? == NEVER_EXPIRES { by.without_end() } else { by }))
}

/// As Redis counts: whole milliseconds, never more than were asked for.
pub(in crate::backend) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}
