//! Waiting for a lock, and giving up.
//!
//! A node tells the one that has waited longest of a release. As the nodes are released one
//! after the other, a waiter counts those that told it: it votes when a majority has, or a
//! moment after the first.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::super::redis::keys::Companion::Line;
use super::super::redis::script::Call;
use super::super::redis::script::millis;
use super::RedlockStore;
use super::bids::{SHORTEST_BAR, Waiting};
use super::claim::limit;
use super::script::WITHDRAW;
use crate::backend::{Claim, Grant, Turn, Verdict};
use crate::error::Result;

/// How long after the first node's message the others' are waited for.
const GATHERING: Duration = Duration::from_millis(3);

impl RedlockStore {
    pub(super) async fn wait_for_turn(self: &Arc<Self>, claim: Claim) -> Result<Turn> {
        loop {
            match self.bids.waiting(claim.owner) {
                Waiting::Nothing => return Ok(Turn::TryAgain),
                Waiting::Until { again, bell, woken } => {
                    let called = woken as usize >= self.majority;
                    let again = match woken {
                        0 => again,
                        _ => again.min(self.clock.now() + GATHERING),
                    };
                    if !called && again > self.clock.now() {
                        let heard = tokio::select! {
                            () = bell.notified() => true,
                            () = self.clock.sleep_until(again) => false,
                        };
                        if heard {
                            continue;
                        }
                    }
                }
            }
            match self.claim(vec![claim.clone()]).await?.pop() {
                Some(Verdict::Granted(grant)) => return Ok(Turn::Granted(grant)),
                Some(Verdict::Queued(_)) => {}
                Some(Verdict::Held(_)) | None => return Ok(Turn::TryAgain),
            }
        }
    }

    pub(super) async fn leave_line(self: &Arc<Self>, claim: Claim) -> Result<()> {
        self.bids.bar(&claim, self.clock.now());
        self.withdraw(&[claim]).await
    }

    /// The grants that are proved; all other claims are given up.
    pub(super) async fn settle_claims(
        self: &Arc<Self>,
        claims: Vec<Claim>,
    ) -> Result<Vec<Option<Grant>>> {
        let now = self.clock.now();
        let mut settled = Vec::with_capacity(claims.len());
        let mut given_up = Vec::new();
        for claim in claims {
            let grant = match self.bids.settle(&claim, now) {
                Some(token) => self.prove(&claim, token).await?,
                None => None,
            };
            if grant.is_none() {
                self.bids.bar(&claim, now);
                given_up.push(claim);
            }
            settled.push(grant);
        }
        if !given_up.is_empty() {
            self.withdraw(&given_up).await?;
        }
        Ok(settled)
    }

    /// Whatever these have at the nodes goes. A majority must know of it: the others let it
    /// lapse.
    async fn withdraw(self: &Arc<Self>, claims: &[Claim]) -> Result<()> {
        let call = || {
            let mut call = Call::new(&WITHDRAW, 0, 1 + 2 * claims.len());
            call.arg(&self.marker);
            for claim in claims {
                call.keys(&self.keys(&claim.name), &[Line]);
            }
            call.arg(self.expected());
            for claim in claims {
                let bar = claim.ttl.max(SHORTEST_BAR);
                call.arg(claim.owner.to_string()).arg(millis(bar));
            }
            call
        };
        let limit = limit(claims.iter(), self.settings.timeout);
        let done = |answer: &Value| *answer == Value::Int(1);
        let answers = self.consult(call, claims.len(), limit, |answers, pending| {
            pending == 0 || answers.count(0, done) >= self.majority
        });
        let answers = answers.await;
        if answers.count(0, done) >= self.majority {
            Ok(())
        } else {
            Err(answers.no_majority(&self.nodes))
        }
    }
}
