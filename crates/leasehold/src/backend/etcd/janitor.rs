//! The janitor: one task that ends what nobody wants. A session outlives single leases, so
//! a hold that was not renewed is given up here, and keys that came late are removed.
//!
//! It keeps the watches that tell of a loss sooner than the next renewal does: those on the
//! sessions' own keys, and one on the records of force-releases.

use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{Event, EventType, GetOptions, LeaseTimeToLiveOptions};

use super::EtcdStore;
use super::ledger::{Entry, Ledger};
use super::queue::created;
use super::watcher::{Heard, Watch};
use crate::backend::Hint;
use crate::clock::Moment;
use crate::error::Result;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(200);
/// How long a session without claims is kept for the next one.
const IDLE: Duration = Duration::from_secs(600);
/// How often the keys of a session are looked through that may have got a late one.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long one of its requests may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs until the store is gone.
pub(super) async fn run(store: Weak<EtcdStore>) {
    loop {
        let Some(store) = store.upgrade() else { return };
        let now = store.clock.now();
        end_overdue(&store, now);
        look_after_sessions(&store, now);
        store.queues.lock().retain(|_, queue| queue.is_wanted(now));
        follow_forced(&store);
        let clock = store.clock.clone();
        drop(store);
        clock.sleep(EVERY).await;
    }
}

/// Removes the keys of claims that were not renewed, or that nobody waits on any more.
fn end_overdue(store: &Arc<EtcdStore>, now: Moment) {
    let overdue = store.ledger.lock().take_overdue(now);
    for (owner, entry) in overdue {
        let store = store.clone();
        tokio::spawn(async move {
            let removing = tokio::time::timeout(LIMIT, store.withdraw(&entry, owner));
            if !matches!(removing.await, Ok(Ok(()))) {
                // Swept later, or gone with the session.
                entry.session.suspect(store.clock.now());
            }
        });
    }
}

fn look_after_sessions(store: &Arc<EtcdStore>, now: Moment) {
    let Ledger { sessions, claims, .. } = &mut *store.ledger.lock();
    // Dropped, its lease is revoked. Nobody takes a place on it meanwhile.
    sessions.retain(|used| {
        let idle = used.session.is_retired() || used.idle_since.until(now) > IDLE;
        !(used.session.has_ended() || used.claims == 0 && idle)
    });
    for used in sessions {
        let session = used.session.clone();
        session.watch(store);
        if session.is_suspect(now) && used.swept_at.until(now) >= SWEEP_EVERY {
            used.swept_at = now;
            let (store, id) = (store.clone(), session.id);
            tokio::spawn(async move {
                if let Ok(Err(error)) = tokio::time::timeout(LIMIT, sweep(&store, id)).await {
                    tracing::debug!(%error, "could not look for keys that nobody wants");
                }
            });
        }
        // Holds are kept by their renewal. Waiters need the session meanwhile, and one
        // without claims is kept ready.
        let due = session.proved_at().until(now) >= session.ttl / 3;
        let waits = |entry: &Entry| entry.session.id == session.id && entry.view.is_some();
        if due && (used.claims == 0 || claims.iter().any(|(_, entry)| waits(entry))) {
            tokio::spawn(async move { session.prove().await });
        }
    }
}

/// Compares the session's keys with our own ledger, and removes strangers.
async fn sweep(store: &EtcdStore, session: i64) -> Result<()> {
    let options = LeaseTimeToLiveOptions::new().with_keys();
    let listing = store
        .endpoints
        .call(async |mut etcd| etcd.lease_time_to_live(session, Some(options)).await);
    for key in listing.await?.keys() {
        let Some(name) = store.layout.lock_of(key, session) else { continue };
        if store.ledger.lock().has_place(session, &name) {
            continue;
        }
        let found = store.endpoints.get(&**key, GetOptions::new().with_keys_only()).await?;
        // Looked at again: it may have been claimed meanwhile.
        if let Some(revision) = created(&found)
            && !store.ledger.lock().has_place(session, &name)
        {
            tracing::debug!(lock = %name, "removing a key that came late");
            store.remove(String::from_utf8_lossy(key).into_owned(), revision).await?;
        }
    }
    Ok(())
}

/// Watches the records of force-releases, while this client has something to lose.
fn follow_forced(store: &Arc<EtcdStore>) {
    let mut watch = store.forced.lock();
    if store.ledger.lock().sessions.is_empty() {
        *watch = None;
    } else if watch.as_ref().is_none_or(Watch::is_over) {
        let start = store.layout.all_forced();
        // The first text after all that begin with this one, which ends with a slash.
        let end = format!("{}0", &start[..start.len() - 1]);
        let own_store = Arc::downgrade(store);
        let forced = store.watcher.watch(start..end, false, move |heard| {
            if let (Heard::Events(events), Some(store)) = (heard, own_store.upgrade()) {
                events.iter().for_each(|event| forced_by(&store, event));
            }
        });
        let missed = watch.replace(forced).is_some();
        if missed {
            store.hints.announce(Hint::All);
        }
    }
}

fn forced_by(store: &EtcdStore, event: &Event) {
    if event.event_type() == EventType::Put
        && let Some((name, token)) = event.kv().and_then(|kv| store.layout.forced_of(kv.key()))
        && let Some(owner) = store.ledger.lock().claims.owner_of(&name, token)
    {
        store.hints.announce(Hint::Lease(owner));
    }
}
