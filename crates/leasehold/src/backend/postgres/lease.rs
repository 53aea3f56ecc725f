//! Lease mode: a row for each lock, with its owner, token and expiry by the database's clock.
//!
//! Two connections: one for claims, one for everything else, so that a renewal never queues
//! behind a claim that waits for somebody's row. A third one listens, once somebody waits.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use self::listener::Listener;
use self::seats::Seats;
use super::url::Settings;
use super::wire::{Session, Wire};
use super::{STORE, examine, only, pooler, reply, schema};
use crate::backend::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Proof, Release, Renewal, Reply,
    Turn, Verdict,
};
use crate::clock::{Clock, Moment};
use crate::error::{Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

mod beats;
mod claim;
mod hold;
mod inspect;
mod listener;
mod seats;
mod shortcut;
mod verbs;
mod wait;

pub(super) use inspect::wall;

const GUARANTEES: Guarantees = Guarantees {
    store: STORE,
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
    extra_drift: Duration::ZERO,
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
    claims: Wire,
    /// For claims of locks that are free, as most are.
    shortcut: shortcut::Shortcut,
    rest: Wire,
    /// Where this client listens: a number that is its own. See [`introduction`] for its sign.
    client: i64,
    seats: Arc<Seats>,
    listener: Listener,
    beats: beats::Beats,
    pooled: bool,
    sweeping: parking_lot::Mutex<Option<tokio::task::JoinHandle<()>>>,
}

impl LeaseStore {
    pub(super) async fn open(settings: Arc<Settings>, clock: Clock) -> Result<Arc<Self>> {
        let first = Session::connect(&settings, &settings.config, None, true).await?;
        let second = Session::connect(&settings, &settings.config, None, true).await?;
        let pooled = pooler::between(&first, &second).await?;
        let (first, second) = match pooled {
            true => (first, second),
            false => (first.unpooled().await?, second.unpooled().await?),
        };
        schema::ensure(&first).await?;
        let (client, greeting) = introduction(pooled);
        let seats = Arc::new(Seats::default());
        let store = Arc::new(Self {
            claims: Wire::new(settings.clone(), pooled).greeting(greeting.clone()),
            shortcut: shortcut::Shortcut::default(),
            rest: Wire::new(settings.clone(), pooled).greeting(greeting),
            listener: Listener::new(settings.clone(), client, seats.clone(), pooled),
            beats: beats::Beats::default(),
            settings,
            clock,
            client,
            seats,
            pooled,
            sweeping: parking_lot::Mutex::default(),
        });
        store.claims.adopt(first).await?;
        store.rest.adopt(second).await?;
        *store.sweeping.lock() = Some(tokio::spawn(sweep(Arc::downgrade(&store))));
        Ok(store)
    }

    fn grant(token: i64, proved: i64, term: i64) -> Grant {
        let at = Moment::from_nanos(u64::try_from(proved).unwrap_or(0));
        let valid_for = Duration::from_micros(u64::try_from(term).unwrap_or(0));
        Grant { token: Token::new(token as u64), proof: Proof { at, valid_for } }
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

/// Forgets what is over, now and then. Ends with the store.
async fn sweep(store: Weak<LeaseStore>) {
    let at_once = fastrand::u32(..SWEEPS_AT_ONCE) == 0;
    let mut pause = if at_once { Duration::ZERO } else { SWEEP_EVERY };
    loop {
        tokio::time::sleep(pause + pause.mul_f64(fastrand::f64() / 2.0)).await;
        pause = SWEEP_EVERY;
        let session = {
            let Some(store) = store.upgrade() else { return };
            store.seats.forget_abandoned(store.clock.now());
            // Nobody connects just to sweep.
            store.rest.present()
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
        let page = session.row(&verbs::SWEEP_PAGE, &[&after, &seen]).await?;
        let Some(last) = page.get::<_, Option<String>>(0) else { break };
        (after, seen) = (last, page.get(1));
        tokio::time::sleep(BETWEEN_PAGES).await;
    }
    session.rows(&verbs::SWEEP, &[]).await.map(drop)
}

impl fmt::Debug for LeaseStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LeaseStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Drop for LeaseStore {
    fn drop(&mut self) {
        if let Some(sweeping) = self.sweeping.lock().take() {
            sweeping.abort();
        }
    }
}

/// A duration as the tables keep it.
fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A moment of this client as the tables keep it.
fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

impl Backend for LeaseStore {
    fn guarantees(&self) -> &Guarantees {
        &GUARANTEES
    }

    fn limits(&self) -> Limits {
        Limits::new(256, 2).in_halves()
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let lock = only(&claims, |claim| &claim.name);
        reply(Operation::Acquire, lock, self.claim(claims))
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        reply(Operation::Wait, Some(claim.name.clone()), self.wait_in_line(claim))
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        reply(
            Operation::Leave,
            Some(claim.name.clone()),
            async move { self.leave_line(&claim).await },
        )
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        let lock = only(&claims, |claim| &claim.name);
        reply(Operation::Settle, lock, async move { self.settle_claims(claims).await })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        let lock = only(&holds, |hold| &hold.name);
        reply(Operation::Renew, lock, async move { self.renew_holds(holds).await })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        let lock = only(&holds, |hold| &hold.name);
        reply(Operation::Release, lock, self.release_holds(holds))
    }

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        reply(Operation::Inspect, Some(name.clone()), async move {
            let session = self.rest.session().await?;
            inspect::inspect(&session, &name).await
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        reply(Operation::List, None, async move {
            let session = self.rest.session().await?;
            inspect::list(&session, &prefix).await
        })
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        reply(Operation::ForceRelease, Some(name.clone()), async move {
            let session = self.rest.session().await?;
            let (lock, by, reason) = (name.as_str(), &*forced.by, &*forced.reason);
            let row = session.row(&verbs::FORCE, &[&lock, &by, &reason]).await?;
            Ok(row.get::<_, Option<i64>>(0).map(|token| Token::new(token as u64)))
        })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        reply(Operation::Examine, None, async move {
            let session = self.rest.session().await?;
            let mut findings = examine::server(&session).await?;
            findings.push(examine::listening(self.pooled, self.settings.listen.is_some()));
            Ok(findings)
        })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move { Ok(Hint::Lease(self.seats.next_forced().await)) })
    }
}
