//! What must be done though nobody asks for it: show the server that sessions are alive, give
//! back what its holder did not renew, end waits that nobody waits for, publish who holds what.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_postgres::types::ToSql;

use super::key::{Key, shown};
use super::ledger::{Held, Ledger, Waiting};
use super::lifeline::Lifeline;
use super::{Session, SessionStore, hold, statements};
use crate::backend::kit::ledger::Entry;
use crate::backend::kit::time::{micros, since_epoch};
use crate::clock::Moment;
use crate::error::Result;
use crate::owner::Owner;

const TICK: Duration = Duration::from_millis(50);
/// A lease that ends sooner than this is not published.
const PUBLISHED_AFTER: Duration = Duration::from_millis(40);
/// How many leases one statement publishes.
const AT_ONCE: usize = 512;
const TICKS_BETWEEN_SWEEPS: u32 = 1_200;

pub(super) async fn look_after(store: Weak<SessionStore>) {
    let mut ticks = fastrand::u32(..TICKS_BETWEEN_SWEEPS);
    loop {
        tokio::time::sleep(TICK).await;
        let Some(store) = store.upgrade() else { return };
        let idle = tidy(&store).await;
        ticks = ticks.wrapping_add(1);
        if ticks % TICKS_BETWEEN_SWEEPS == 0
            && let Some(session) = store.observer.current()
            && let Err(error) = session.rows(&statements::SWEEP, &[]).await
        {
            tracing::debug!(%error, "sweeping is put off");
        }
        if idle {
            // New work rings; sessions must be kept alive without it.
            let _ = tokio::time::timeout(TICK * 5, store.work.notified()).await;
        }
    }
}

/// One round; whether there is nothing to look after.
async fn tidy(store: &Arc<SessionStore>) -> bool {
    let now = store.clock.now();
    let (lifelines, lapsed, left, fresh, retract, idle) = {
        let mut ledger = store.ledger.lock();
        let carrying = ledger.held.iter().map(|(_, held)| &held.lifeline);
        let own = carrying.filter(|lifeline| !lifeline.shared).chain(&ledger.idle);
        let lifelines: Vec<Arc<Lifeline>> = own.cloned().collect();
        let lapsed = ledger.take_lapsed(now);
        let left = ledger.take_left(now);
        let fresh = unpublished(&mut ledger, now);
        let retract = std::mem::take(&mut ledger.retract);
        let idle = ledger.held.is_empty() && ledger.waiting.is_empty();
        (lifelines, lapsed, left, fresh, retract, idle)
    };
    for (owner, waiting) in left {
        tokio::spawn(abandon(store.clone(), owner, waiting));
    }
    for lifeline in lifelines.into_iter().chain(store.shared.current()) {
        if lifeline.is_open() && lifeline.is_due(now) {
            tokio::spawn(async move { lifeline.ping().await });
        }
    }
    let _ = hold::give_back(store, lapsed).await;
    if let Err(error) = publish_all(store, &fresh, &retract).await {
        tracing::debug!(%error, "cannot publish who holds what");
    }
    idle
}

/// What has been held long enough to be published, and is not yet.
fn unpublished(ledger: &mut Ledger, now: Moment) -> Vec<Held> {
    let is_fresh = |held: &Held| !held.published && held.granted + PUBLISHED_AFTER <= now;
    let fresh = ledger.held.iter().filter(|(_, held)| is_fresh(held));
    let fresh: Vec<Owner> = fresh.map(|(owner, _)| owner).collect();
    let publish = |held: &mut Held| {
        held.published = true;
        held.clone()
    };
    fresh.into_iter().filter_map(|owner| ledger.held.update(owner, publish)).collect()
}

/// Ends a wait that nobody waits for, and gives back what it got meanwhile.
async fn abandon(store: Arc<SessionStore>, owner: Owner, waiting: Waiting) {
    waiting.end().await;
    let held = {
        let mut ledger = store.ledger.lock();
        let uncollected = ledger.held.get(owner).is_some_and(|held| !held.collected);
        uncollected.then(|| ledger.remove(owner)).flatten()
    };
    let _ = hold::give_back(&store, held.into_iter().collect()).await;
}

/// Publishes leases, and takes back what is over.
async fn publish_all(
    store: &SessionStore,
    fresh: &[Held],
    retract: &[(Key, i32, i64)],
) -> Result<()> {
    if fresh.is_empty() && retract.is_empty() {
        return Ok(());
    }
    let session = store.observer.session().await?;
    if !retract.is_empty() {
        let (high, low, form) = shown(retract.iter().map(|gone| gone.0));
        let backends: Vec<i32> = retract.iter().map(|gone| gone.1).collect();
        let tokens: Vec<i64> = retract.iter().map(|gone| gone.2).collect();
        session.rows(&statements::RETRACT, &[&high, &low, &form, &backends, &tokens]).await?;
    }
    // As a rule all are of one holder.
    let alike = fresh.chunk_by(|one, next| one.claim.holder == next.claim.holder);
    for held in alike.flat_map(|alike| alike.chunks(AT_ONCE)) {
        publish(&session, held, store.clock.now()).await?;
    }
    Ok(())
}

/// Publishes leases of one holder.
async fn publish(session: &Session, held: &[Held], now: Moment) -> Result<()> {
    let Some(Held { claim, .. }) = held.first() else { return Ok(()) };
    let (holder, pid) = (&claim.holder, claim.holder.pid as i32);
    let (high, low, form) = shown(held.iter().map(|held| held.key));
    let names: Vec<&str> = held.iter().map(|held| held.claim.name.as_str()).collect();
    let tokens: Vec<i64> = held.iter().map(|held| held.grant.token.get() as i64).collect();
    let owners: Vec<[u8; 16]> = held.iter().map(|held| held.claim.owner.to_bytes()).collect();
    let owners: Vec<&[u8]> = owners.iter().map(|owner| &owner[..]).collect();
    let backends: Vec<i32> = held.iter().map(|held| held.lifeline.session.backend).collect();
    let since: Vec<i64> = held.iter().map(|held| since_epoch(held.since)).collect();
    let left: Vec<i64> = held.iter().map(|held| micros(now.until(held.until()))).collect();
    let keys: [&(dyn ToSql + Sync); 3] = [&high, &low, &form];
    let leases: [&(dyn ToSql + Sync); 6] = [&names, &tokens, &owners, &backends, &since, &left];
    let about: [&(dyn ToSql + Sync); 3] = [&holder.host, &pid, &holder.label];
    let parameters = [&keys[..], &leases, &about].concat();
    session.rows(&statements::PUBLISH, &parameters).await.map(drop)
}
