//! Waiting for a lock, and giving up.
//!
//! A node tells the waiter that has waited longest of a release. As the nodes are released one
//! after the other, a waiter counts those that told it: it votes when a majority has, or a
//! moment after the first.

use std::sync::Arc;
use std::time::Duration;

use super::RedlockStore;
use super::acquire::acquire;
use super::attempt::withdraw;
use crate::backend::{Claim, Turn, Verdict};
use crate::error::Result;

/// How long after the first node's message the others' are waited for.
const GATHERING: Duration = Duration::from_millis(3);

pub(super) async fn wait(store: Arc<RedlockStore>, claim: Claim) -> Result<Turn> {
    loop {
        let Some((bell, mut again, woken)) = store.ledger.waiting(claim.owner) else {
            return Ok(Turn::TryAgain);
        };
        let now = store.clock.now();
        if woken > 0 {
            again = again.min(now + GATHERING);
        }
        if woken < store.majority && again > now {
            tokio::select! {
                () = bell.notified() => continue,
                () = store.clock.sleep_until(again) => {}
            }
        }
        match acquire(store.clone(), vec![claim.clone()]).await?.pop() {
            Some(Verdict::Granted(grant)) => return Ok(Turn::Granted(grant)),
            Some(Verdict::Queued(_)) => {}
            _ => return Ok(Turn::TryAgain),
        }
    }
}

pub(super) async fn leave(store: Arc<RedlockStore>, claim: Claim) -> Result<()> {
    store.ledger.give_up(&claim, store.clock.now());
    withdraw(&store, &[claim]).await
}
