//! Keeping a lease and giving it back.

use std::sync::Arc;

use tokio_postgres::types::ToSql;

use super::super::connection::Session;
use super::LeaseStore;
use super::statements::{self, Column, answers, element, in_order, nanos};
use crate::backend::kit::time::micros;
use crate::backend::{Hint, Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

pub(super) async fn renew(store: Arc<LeaseStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let session = store.rest.session().await?;
    let order = in_order(&holds, |hold| &hold.name);
    let (names, owners, tokens) = columns(&order);
    let ttls: Vec<i64> = order.iter().map(|(_, hold)| micros(hold.ttl)).collect();
    let at = store.clock.now();
    let parameters: [&(dyn ToSql + Sync); 5] = [&names, &owners, &tokens, &ttls, &nanos(at)];
    let row = session.row(&statements::RENEW, &parameters).await?;
    let states: Column<i16> = row.get(0);
    let (bys, reasons): (Column<&str>, Column<&str>) = (row.get(1), row.get(2));
    Ok(answers(&order, |place, hold| {
        match if states.is_none() { Some(0) } else { element(&states, place) } {
            Some(0) => Renewal::Renewed(Proof { at, valid_for: hold.ttl }),
            Some(2) => Renewal::NotYours(LossReason::Taken),
            Some(3) => {
                let by = element(&bys, place).unwrap_or_default();
                let reason = element(&reasons, place).unwrap_or_default();
                Renewal::NotYours(LossReason::Forced(Forced::new(by, reason)))
            }
            _ => Renewal::NotYours(LossReason::Expired),
        }
    }))
}

pub(super) async fn release(store: Arc<LeaseStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    give_back(&*store.rest.session().await?, &holds).await
}

/// Gives these back by this session.
pub(super) async fn give_back(session: &Session, holds: &[Hold]) -> Result<Vec<Release>> {
    let order = in_order(holds, |hold| &hold.name);
    let (names, owners, tokens) = columns(&order);
    let row = session.row(&statements::RELEASE, &[&names, &owners, &tokens]).await?;
    let released: Column<bool> = row.get(0);
    Ok(answers(&order, |place, _| match element(&released, place) {
        Some(true) => Release::Released,
        _ if released.is_none() => Release::Released,
        _ => Release::NotHeld,
    }))
}

pub(super) async fn hint(store: Arc<LeaseStore>) -> Result<Hint> {
    Ok(store.waiters.hints.next().await)
}

/// Their names, owners and tokens.
fn columns<'a>(holds: &[(usize, &'a Hold)]) -> (Vec<&'a str>, Vec<Vec<u8>>, Vec<i64>) {
    let column = |(_, hold): &(usize, &'a Hold)| {
        (hold.name.as_str(), hold.owner.to_bytes().to_vec(), hold.token.get() as i64)
    };
    holds.iter().map(column).collect()
}
