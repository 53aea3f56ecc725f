//! Holds: proving, extending and giving back what is held.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::super::redis::keys::Companion::{Forced as ForcedKey, Line, Record};
use super::super::redis::script::Call;
use super::super::redis::script::millis;
use super::super::redis::script::text;
use super::RedlockStore;
use super::claim::patience;
use super::quorum::Answers;
use super::script::{RELEASE, RENEW};
use crate::backend::{Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

impl RedlockStore {
    pub(super) async fn renew_holds(self: &Arc<Self>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
        let call = || {
            let mut call = Call::new(&RENEW, 0, 1 + 3 * holds.len());
            call.arg(&self.marker);
            for hold in &holds {
                call.keys(&self.keys(&hold.name), &[Record, ForcedKey]);
            }
            call.arg(self.expected());
            for hold in &holds {
                call.arg(hold.owner).arg(hold.token.get()).arg(millis(hold.ttl));
            }
            call
        };
        let at = self.clock.now();
        let yes = |answer: &Value| *answer == Value::Int(1);
        let answers = self.consult(call, holds.len(), self.shortest(&holds), |answers, pending| {
            (0..holds.len()).all(|item| self.is_decided(answers, item, yes, pending))
        });
        let answers = answers.await;
        let mut renewals = Vec::with_capacity(holds.len());
        for (item, hold) in holds.iter().enumerate() {
            renewals.push(match self.outcome(&answers, item, yes) {
                Some(true) => {
                    let valid_for = Duration::from_millis(millis(hold.ttl));
                    self.bids.renew(hold.owner, at + valid_for + valid_for);
                    Renewal::Renewed(Proof { at, valid_for })
                }
                Some(false) => Renewal::NotYours(reason(&answers, item)),
                None => return Err(answers.no_majority(&self.nodes)),
            });
        }
        Ok(renewals)
    }

    pub(super) async fn release_holds(self: &Arc<Self>, holds: Vec<Hold>) -> Result<Vec<Release>> {
        let call = || {
            let mut call = Call::new(&RELEASE, 0, 1 + 2 * holds.len());
            call.arg(&self.marker);
            let keys: Vec<_> = holds.iter().map(|hold| self.keys(&hold.name)).collect();
            for keys in &keys {
                call.arg(&keys.lock);
            }
            for keys in &keys {
                call.companion(keys, Line);
            }
            call.arg(self.expected()).arg("1");
            for hold in &holds {
                call.arg(hold.owner);
            }
            call
        };
        // From now on no late answer to its claim counts.
        for hold in &holds {
            self.bids.forget(hold.owner);
        }
        let yes = |answer: &Value| *answer == Value::Int(1);
        let answers = self.consult(call, holds.len(), self.shortest(&holds), |answers, pending| {
            (0..holds.len()).all(|item| self.is_decided(answers, item, yes, pending))
        });
        let answers = answers.await;
        let mut releases = Vec::with_capacity(holds.len());
        for item in 0..holds.len() {
            releases.push(match self.outcome(&answers, item, yes) {
                Some(true) => Release::Released,
                Some(false) => Release::NotHeld,
                None => return Err(answers.no_majority(&self.nodes)),
            });
        }
        Ok(releases)
    }

    fn shortest(&self, holds: &[Hold]) -> Duration {
        let most = self.settings.timeout;
        patience(holds.iter().map(|hold| hold.ttl).min().unwrap_or(most), most)
    }

    /// Yes, no, or not known: where nodes are silent, they may be of either mind.
    fn outcome(&self, answers: &Answers, item: usize, yes: fn(&Value) -> bool) -> Option<bool> {
        let said_yes = answers.count(item, yes);
        let said_no = answers.given.len() - said_yes;
        if said_yes >= self.majority {
            Some(true)
        } else if self.nodes.len() - said_no < self.majority {
            Some(false)
        } else {
            None
        }
    }

    fn is_decided(
        &self,
        answers: &Answers,
        item: usize,
        yes: fn(&Value) -> bool,
        pending: usize,
    ) -> bool {
        pending == 0 || self.outcome(answers, item, yes).is_some()
    }
}

/// Why a lease is gone: whoever used force left a note where it was held.
fn reason(answers: &Answers, item: usize) -> LossReason {
    let mut taken = false;
    for answer in answers.given.iter().filter_map(|answers| answers.get(item)) {
        match answer {
            Value::Array(parts) => {
                if let [by, reason] = &parts[..]
                    && let (Ok(by), Ok(reason)) = (text(by), text(reason))
                {
                    return LossReason::Forced(Forced::new(by, reason));
                }
            }
            Value::Int(2) => taken = true,
            _ => {}
        }
    }
    if taken { LossReason::Taken } else { LossReason::Expired }
}
