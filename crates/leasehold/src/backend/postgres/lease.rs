//! Lease mode: a row for each lock, with its owner, token and expiry by the database's clock.
//!
//! Two connections: one for claims, one for everything else, so that a renewal never queues
//! behind a claim that waits for somebody's row. A third one listens, once somebody waits.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use self::acquire::Shortcut;
use self::listener::Listener;
use self::statements::{SWEEP, SWEEP_PAGE};
use self::wait::Heartbeats;
use self::waiters::Waiters;
use super::connection::Session;
use super::connector::{self, Connector};
use super::url::Settings;
use super::{STORE, schema};
use crate::backend::kit::verbs::verbs;
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};

mod acquire;
mod admin;
mod hold;
mod listener;
mod statements;
mod wait;
mod waiters;

const GUARANTEES: Guarantees = Guarantees {
    consistency: Consistency::Linearizable,
    scope: Scope::Network,
    ends_with: EndsWith::Ttl,
    tokens: "per lock, in its row: the last one plus one, at least the database's clock in µs",
    fair: true,
    survives_restart: true,
    may_lose: &[
        "fail-over to a standby that is not synchronous (tokens go on rising by the clock)",
        "the server runs with fsync=off or synchronous_commit=off, and crashes",
        "the database's clock jumps ahead: leases end early, tokens go on rising",
    ],
    ..Guarantees::of(STORE)
};

const SWEEP_EVERY: Duration = Duration::from_secs(60);
/// So that a large table does not keep the server busy.
const BETWEEN_PAGES: Duration = Duration::from_millis(10);
/// One in so many clients that come sweeps at once: they may all be too short-lived to do
/// it later.
const SWEEPS_AT_ONCE: u32 = 64;

/// The store in lease mode.
pub(super) struct LeaseStore {
    settings: Arc<Settings>,
    clock: Clock,
    claims: Connector,
    /// For claims of locks that are free, as most are.
    shortcut: Shortcut,
    rest: Connector,
    /// Where this client listens: a number that is its own. See [`introduction`] for its sign.
    client: i64,
    waiters: Arc<Waiters>,
    listener: Listener,
    heartbeats: Heartbeats,
    pooled: bool,
    /// Ends with the store.
    sweeping: Mutex<JoinSet<()>>,
}

verbs!(LeaseStore, STORE, |_store| &GUARANTEES, Limits::new(256, 2).in_halves());

impl LeaseStore {
    pub(super) async fn open(settings: Arc<Settings>, clock: Clock) -> Result<Arc<Self>> {
        let first = Session::connect(&settings, &settings.config, None, true).await?;
        let second = Session::connect(&settings, &settings.config, None, true).await?;
        let pooled = connector::are_pooled(&first, &second).await?;
        let (first, second) = match pooled {
            true => (first, second),
            false => (first.unpooled().await?, second.unpooled().await?),
        };
        schema::ensure(&first).await?;
        let (client, greeting) = introduction(pooled);
        let connector =
            || Connector::new(settings.clone(), clock.clone(), pooled, greeting.clone());
        let waiters = Arc::new(Waiters::default());
        let store = Arc::new(Self {
            claims: connector(),
            shortcut: Shortcut::default(),
            rest: connector(),
            client,
            listener: Listener::new(settings.clone(), client, waiters.clone(), pooled),
            waiters,
            heartbeats: Heartbeats::default(),
            pooled,
            sweeping: Mutex::default(),
            settings,
            clock,
        });
        store.claims.adopt(first).await?;
        store.rest.adopt(second).await?;
        store.sweeping.lock().spawn(sweep(Arc::downgrade(&store)));
        Ok(store)
    }
}

/// A number for a client, and what its sessions say first. A negative one promises that they
/// say it: a waiter is passed over when no session of its client is left. Through a pooler none
/// is a client's own.
fn introduction(pooled: bool) -> (i64, Option<String>) {
    let number = (i64::from_be_bytes(rand::random::<[u8; 8]>()) & i64::MAX).max(1);
    match pooled {
        true => (number, None),
        false => (-number, Some(format!("select leasehold.attend({})", -number))),
    }
}

/// Forgets what is over, now and then.
async fn sweep(store: Weak<LeaseStore>) {
    let at_once = fastrand::u32(..SWEEPS_AT_ONCE) == 0;
    let mut pause = if at_once { Duration::ZERO } else { SWEEP_EVERY };
    loop {
        tokio::time::sleep(pause + pause.mul_f64(fastrand::f64() / 2.0)).await;
        pause = SWEEP_EVERY;
        let session = {
            let Some(store) = store.upgrade() else { return };
            store.waiters.forget_abandoned(store.clock.now());
            // Nobody connects just to sweep.
            store.rest.current()
        };
        if let Some(session) = session
            && let Err(error) = sweep_all(&session).await
        {
            tracing::debug!(%error, "sweeping is put off");
        }
    }
}

/// Forgets what is over, page by page: renewals and releases go in between.
async fn sweep_all(session: &Session) -> Result<()> {
    let (mut after, mut seen) = (String::new(), None::<i64>);
    loop {
        let page = session.row(&SWEEP_PAGE, &[&after, &seen]).await?;
        let Some(last) = page.get::<_, Option<String>>(0) else { break };
        (after, seen) = (last, page.get(1));
        tokio::time::sleep(BETWEEN_PAGES).await;
    }
    session.rows(&SWEEP, &[]).await.map(drop)
}

impl fmt::Debug for LeaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::{Claim, Hold};

    /// How much room the request takes that this makes.
    fn room<T, F>(_: impl FnOnce(Arc<LeaseStore>, T) -> F) -> usize {
        size_of::<F>()
    }

    /// glibc keeps free blocks of at most 1032 bytes at hand; the rest of them is for what the
    /// error of a request is about.
    #[test]
    fn the_futures_of_requests_stay_small() {
        let rooms = [
            room::<Vec<Claim>, _>(acquire::acquire),
            room::<Vec<Claim>, _>(acquire::settle),
            room::<Vec<Hold>, _>(hold::renew),
            room::<Vec<Hold>, _>(hold::release),
        ];
        assert!(rooms.iter().all(|room| *room <= 960), "{rooms:?}");
    }
}
