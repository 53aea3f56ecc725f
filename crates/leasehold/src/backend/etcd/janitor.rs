//! The janitor: one task that ends what nobody wants. A session outlives single leases, so
//! a hold that was not renewed is given up here, and keys that came late are removed.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{GetOptions, LeaseTimeToLiveOptions};

use super::EtcdStore;
use super::session::Session;
use super::table::Entry;
use crate::clock::Moment;
use crate::error::Result;
use crate::owner::Owner;

/// How often it looks.
const EVERY: Duration = Duration::from_millis(200);
/// How long a session without claims is kept for the next one.
const IDLE: Duration = Duration::from_secs(600);
/// How long a line's watch is kept for the next waiter.
const LINGERS: Duration = Duration::from_secs(5);
/// How often the keys of a session are looked through that may have got a late one.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long one of its requests may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Runs until the store is gone.
pub(super) async fn run(store: Weak<EtcdStore>) {
    loop {
        let Some(store) = store.upgrade() else { return };
        let now = store.clock.now();
        store.end_lapsed(now);
        store.look_after_sessions(now);
        store.end_idle_lines(now);
        store.follow_forced();
        let clock = store.clock.clone();
        drop(store);
        clock.sleep(EVERY).await;
    }
}

impl EtcdStore {
    /// Removes the keys of those who did not renew, or stopped waiting.
    fn end_lapsed(self: &Arc<Self>, now: Moment) {
        let lapsed = self.table.lock().take_lapsed(now);
        for (owner, entry) in lapsed {
            tokio::spawn(self.clone().end(owner, entry));
        }
    }

    async fn end(self: Arc<Self>, owner: Owner, entry: Entry) {
        let removing = tokio::time::timeout(LIMIT, self.remove_of(&entry, owner));
        if !matches!(removing.await, Ok(Ok(()))) {
            // Swept later, or gone with the session.
            entry.session.suspect(self.clock.now());
        }
    }

    fn look_after_sessions(self: &Arc<Self>, now: Moment) {
        // Not in the loop's head, which would keep the guard.
        let sessions = self.table.lock().sessions();
        for session in sessions {
            // Before its claims are counted: nobody takes a place on it any more.
            let retired = session.is_retired();
            let claims = session.claims.load(Ordering::Acquire);
            let waiting = session.waiting.load(Ordering::Acquire);
            let idle_since = Moment::from_nanos(session.idle_since.load(Ordering::Acquire));
            let idle = idle_since.until(now) > IDLE || retired;
            if session.has_ended() || (claims == 0 && idle) {
                // Dropped, its lease is revoked.
                self.table.lock().drop_session(session.id);
                continue;
            }
            // Holds are kept by their renewal. Waiters need the session meanwhile, and one
            // without claims is kept ready.
            let due = session.proved_at().until(now) >= session.ttl / 3;
            if due && (waiting > 0 || claims == 0) {
                let proving = session.clone();
                tokio::spawn(async move { proving.prove().await });
            }
            let swept_at = Moment::from_nanos(session.swept_at.load(Ordering::Acquire));
            if session.is_suspect(now) && swept_at.until(now) >= SWEEP_EVERY {
                session.swept_at.store(now.as_nanos(), Ordering::Release);
                let store = self.clone();
                tokio::spawn(async move {
                    let sweeping = tokio::time::timeout(LIMIT, store.sweep(&session));
                    if let Ok(Err(error)) = sweeping.await {
                        tracing::debug!(%error, "could not look for keys that nobody wants");
                    }
                });
            }
        }
    }

    /// Compares the session's keys with our own table, and removes strangers.
    async fn sweep(&self, session: &Arc<Session>) -> Result<()> {
        let id = session.id;
        let listing = self.endpoints.call(async |mut etcd| {
            let options = LeaseTimeToLiveOptions::new().with_keys();
            etcd.lease_time_to_live(id, Some(options)).await
        });
        for key in listing.await?.keys() {
            let Some(name) = self.layout.lock_of(key, id) else { continue };
            if self.table.lock().has_place(id, &name) {
                continue;
            }
            let wanted = key.clone();
            let options = GetOptions::new().with_keys_only();
            let found = self.endpoints.on_keys(async |mut kv| kv.get(wanted, Some(options)).await);
            let found = found.await?;
            // Looked at again: it may have been claimed meanwhile.
            if let Some(kv) = found.kvs().first()
                && !self.table.lock().has_place(id, &name)
            {
                tracing::debug!(lock = %name, "removing a key that came late");
                self.remove(String::from_utf8_lossy(key).into_owned(), kv.create_revision())
                    .await?;
            }
        }
        Ok(())
    }

    fn end_idle_lines(&self, now: Moment) {
        self.lines.lock().retain(|_, line| {
            let idle = line.idle_since(now).map_or(Duration::ZERO, |since| since.until(now));
            !line.is_broken() && idle < LINGERS
        });
    }
}
