//! Holds: proving, extending and giving back what is held.

use std::time::Duration;

use redis::Value;

use super::RedisStore;
use super::answer::{items, number, text};
use super::batch::{Located, by_slot};
use super::claim::millis;
use super::error::unexpected;
use super::keys::Companion::{Forced as ForcedKey, Queue, Record};
use super::keys::Keys;
use super::script::{Call, REASON, RELEASE, RENEW};
use crate::backend::{Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

impl RedisStore {
    pub(super) async fn renew_holds(&self, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
        if !self.route.slots_matter() {
            return self.renew_in_slot(holds).await;
        }
        let holds = self.locate(holds, |hold| &hold.name);
        let renew = |some: Vec<Located<Hold>>| {
            self.renew_in_slot(some.into_iter().map(|(_, hold)| hold).collect())
        };
        by_slot(holds, true, renew).await
    }

    async fn renew_in_slot(&self, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
        let call = renewal(&self.settings.prefix, &holds);
        let at = self.clock.now();
        let answers = items(self.route.call(&call).await?, holds.len())?;
        let mut renewals = Vec::with_capacity(holds.len());
        let mut gone = Vec::new();
        for (place, (hold, answer)) in holds.iter().zip(&answers).enumerate() {
            if number(answer)? == 1 {
                let valid_for = Duration::from_millis(millis(hold.ttl));
                renewals.push(Renewal::Renewed(Proof { at, valid_for }));
            } else {
                gone.push(place);
                renewals.push(Renewal::NotYours(LossReason::Expired));
            }
        }
        if !gone.is_empty() {
            let lost: Vec<_> = gone.iter().map(|place| &holds[*place]).collect();
            // They are lost in any case; without an answer it is only not known why.
            if let Ok(reasons) = self.reasons(&lost).await {
                for (place, reason) in gone.into_iter().zip(reasons) {
                    renewals[place] = Renewal::NotYours(reason);
                }
            }
        }
        Ok(renewals)
    }

    async fn reasons(&self, lost: &[&Hold]) -> Result<Vec<LossReason>> {
        let slot = lost.first().map_or(0, |hold| self.keys(&hold.name).slot);
        let mut call = Call::new(&REASON, slot, 2 * lost.len());
        for hold in lost {
            call.keys(&self.keys(&hold.name), &[ForcedKey]);
        }
        for hold in lost {
            call.arg(hold.token.get());
        }
        let answers = items(self.route.call(&call).await?, lost.len())?;
        let reasons = answers.iter().map(|answer| match answer {
            Value::Array(parts) if parts.len() == 2 => {
                let (by, reason) = (text(&parts[0])?, text(&parts[1])?);
                Ok(LossReason::Forced(Forced::new(by, reason)))
            }
            Value::Int(0) => Ok(LossReason::Expired),
            Value::Int(_) => Ok(LossReason::Taken),
            _ => Err(unexpected()),
        });
        reasons.collect()
    }

    pub(super) async fn release_holds(&self, holds: Vec<Hold>) -> Result<Vec<Release>> {
        let holds = self.locate(holds, |hold| &hold.name);
        by_slot(holds, self.route.slots_matter(), |some| self.release_in_slot(some)).await
    }

    async fn release_in_slot(&self, holds: Vec<Located<Hold>>) -> Result<Vec<Release>> {
        let slot = holds.first().map_or(0, |(keys, _)| keys.slot);
        let mut call = Call::new(&RELEASE, slot, 3 * holds.len());
        for (keys, _) in &holds {
            call.keys(keys, &[Record, Queue]);
        }
        for (_, hold) in &holds {
            call.owner(hold.owner).arg(hold.token.get());
        }
        let answers = items(self.route.call(&call).await?, holds.len())?;
        let verdicts = answers.iter().map(|answer| {
            Ok(if number(answer)? == 1 { Release::Released } else { Release::NotHeld })
        });
        verdicts.collect()
    }
}

/// One call that renews all of these, which are in one slot where slots matter.
pub(super) fn renewal(prefix: &str, holds: &[Hold]) -> Call {
    let mut keys = Keys::default();
    if let Some(first) = holds.first() {
        keys.become_those_of(prefix, &first.name);
    }
    let mut call = Call::new(&RENEW, keys.slot, 2 * holds.len());
    for hold in holds {
        // Written into the same room: there may be a hundred thousand of them.
        keys.become_those_of(prefix, &hold.name);
        call.keys(&keys, &[Record]);
    }
    for hold in holds {
        call.owner(hold.owner).arg(hold.token.get()).arg(millis(hold.ttl));
    }
    call
}
