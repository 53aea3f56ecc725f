//! Keeping a lease and giving it back.

use std::sync::Arc;

use super::claim::element;
use super::{LeaseStore, micros, nanos, verbs};
use crate::backend::{Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

impl LeaseStore {
    pub(super) async fn renew_holds(&self, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
        let session = self.rest.session().await?;
        let batch = Batch::of(&holds);
        let ttls: Vec<i64> = batch.order.iter().map(|&at| micros(holds[at].ttl)).collect();
        let at = self.clock.now();
        let (names, owners, tokens) = (batch.names(), batch.owners(), &batch.tokens);
        let sent = nanos(at);
        let row = session.row(&verbs::RENEW, &[&names, &owners, tokens, &ttls, &sent]).await?;
        let states: Option<Vec<Option<i16>>> = row.get(0);
        let bys: Option<Vec<Option<String>>> = row.get(1);
        let reasons: Option<Vec<Option<String>>> = row.get(2);
        batch.answers(|place, hold| {
            let state = if states.is_none() { Some(0) } else { element(&states, place) };
            match state {
                Some(0) => Renewal::Renewed(Proof { at, valid_for: hold.ttl }),
                Some(2) => Renewal::NotYours(LossReason::Taken),
                Some(3) => {
                    let by = element(&bys, place).unwrap_or_default();
                    let reason = element(&reasons, place).unwrap_or_default();
                    Renewal::NotYours(LossReason::Forced(Forced::new(by, reason)))
                }
                _ => Renewal::NotYours(LossReason::Expired),
            }
        })
    }

    pub(super) async fn release_holds(self: Arc<Self>, holds: Vec<Hold>) -> Result<Vec<Release>> {
        let session = self.rest.session().await?;
        let batch = Batch::of(&holds);
        let (names, owners, tokens) = (batch.names(), batch.owners(), &batch.tokens);
        let row = session.row(&verbs::RELEASE, &[&names, &owners, tokens]).await?;
        let released: Option<Vec<Option<bool>>> = row.get(0);
        batch.answers(|place, _| match &released {
            Some(_) if element(&released, place) != Some(true) => Release::NotHeld,
            _ => Release::Released,
        })
    }
}

/// Holds in the order of their names, in which the server locks its rows.
struct Batch<'a> {
    holds: &'a [Hold],
    order: Vec<usize>,
    owners: Vec<[u8; 16]>,
    tokens: Vec<i64>,
}

impl<'a> Batch<'a> {
    fn of(holds: &'a [Hold]) -> Self {
        let mut order: Vec<usize> = (0..holds.len()).collect();
        order.sort_unstable_by(|&a, &b| holds[a].name.cmp(&holds[b].name));
        let owners = order.iter().map(|&at| holds[at].owner.to_bytes()).collect();
        let tokens = order.iter().map(|&at| holds[at].token.get() as i64).collect();
        Self { holds, order, owners, tokens }
    }

    fn names(&self) -> Vec<&str> {
        self.order.iter().map(|&at| self.holds[at].name.as_str()).collect()
    }

    fn owners(&self) -> Vec<&[u8]> {
        self.owners.iter().map(|owner| &owner[..]).collect()
    }

    /// One answer for each hold, in the order in which they were asked about.
    fn answers<T: Clone>(&self, answer: impl Fn(usize, &Hold) -> T) -> Result<Vec<T>> {
        let mut answers = vec![None; self.holds.len()];
        for (place, &at) in self.order.iter().enumerate() {
            answers[at] = Some(answer(place, &self.holds[at]));
        }
        Ok(answers.into_iter().flatten().collect())
    }
}
