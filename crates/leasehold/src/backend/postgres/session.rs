//! Session mode: advisory locks, which end with the session that holds them.
//!
//! All locks that are free when they are asked for share one connection; what has to be
//! waited for blocks on one of its own, and stays there. A third kind only looks.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::lifeline::Lifeline;
use self::table::{Since, Table};
use super::connection::Session;
use super::connector::{self, Connector};
use super::url::Settings;
use super::{STORE, examine, only, reply, schema};
use crate::backend::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use crate::clock::Clock;
use crate::detach::Detacher;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

mod asking;
mod claim;
mod force;
mod hold;
mod insist;
mod inspect;
mod janitor;
mod lifeline;
mod table;
mod verbs;
mod wait;

const GUARANTEES: Guarantees = Guarantees {
    store: STORE,
    consistency: Consistency::Linearizable,
    scope: Scope::Network,
    ends_with: EndsWith::Session,
    tokens: "a sequence of the database; every session lifts it to the clock in µs if it is behind",
    fair: true,
    survives_restart: false,
    may_lose: &[
        "the server ends a session (pg_terminate_backend, force-release, its clock jumps ahead): the \
         next holder may begin before the last one has read of it, usually milliseconds",
        "a server's host or network vanishes and is back, or a standby is promoted, within the TTL: \
         advisory locks are forgotten, and a holder that hears nothing learns of it by its deadline",
        "a network that is silent for longer than the TTL: the server lets go after one and a half",
    ],
    extra_drift: Duration::ZERO,
};

/// The store in session mode.
pub(super) struct SessionStore {
    settings: Arc<Settings>,
    clock: Clock,
    table: Mutex<Table>,
    shared: Mutex<Option<Arc<Lifeline>>>,
    connecting: tokio::sync::Mutex<()>,
    /// For looking, which must not delay a lock.
    aside: Connector,
    /// Rung when there is something to look after.
    work: Notify,
    ended: Notify,
    /// The waits in the server's line.
    detacher: Detacher,
    closing: CancellationToken,
}

impl SessionStore {
    pub(super) async fn open(settings: Arc<Settings>, clock: Clock) -> Result<Arc<Self>> {
        let first = Session::connect(&settings, &settings.config, None, true).await?;
        let second = Session::connect(&settings, &settings.config, None, true).await?;
        if connector::are_pooled(&first, &second).await? {
            let message = "a transaction pooler (pgbouncer, say) is between this program and the \
                           server: session locks would be another's by the next statement. \
                           Connect to the server itself or to a pool in session mode, or use \
                           mode=lease, which works through it";
            return Err(Error::new(ErrorKind::Refused, message));
        }
        let (first, second) = (first.unpooled().await?, second.unpooled().await?);
        schema::ensure(&first).await?;
        let line = Lifeline::on(first, clock.clone()).await?;
        let store = Arc::new(Self {
            aside: Connector::new(settings.clone(), clock.clone(), false, None),
            settings,
            clock,
            table: Mutex::default(),
            shared: Mutex::default(),
            connecting: tokio::sync::Mutex::new(()),
            work: Notify::new(),
            ended: Notify::new(),
            detacher: Detacher::on(Handle::current()),
            closing: CancellationToken::new(),
        });
        store.aside.adopt(second).await?;
        *store.shared.lock() = Some(store.watched(line));
        tokio::spawn(janitor::look_after(Arc::downgrade(&store), store.closing.clone()));
        Ok(store)
    }

    /// The session that many locks share, or a new one, ready for this TTL.
    async fn shared(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Lifeline>> {
        match self.present().filter(|line| line.carries(ttl)) {
            Some(line) => Ok(line),
            None => Box::pin(self.make_shared(ttl)).await,
        }
    }

    fn present(&self) -> Option<Arc<Lifeline>> {
        self.shared.lock().as_ref().filter(|line| line.is_open()).cloned()
    }

    async fn make_shared(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Lifeline>> {
        let line = match self.present() {
            Some(line) => line,
            None => {
                let _alone = self.connecting.lock().await;
                match self.present() {
                    Some(line) => line,
                    None => {
                        let line = self.new_line().await?;
                        *self.shared.lock() = Some(line.clone());
                        line
                    }
                }
            }
        };
        line.carry(ttl).await?;
        Ok(line)
    }

    /// A new session to carry locks, whose end is noticed.
    async fn new_line(self: &Arc<Self>) -> Result<Arc<Lifeline>> {
        let session = Session::connect(&self.settings, &self.settings.config, None, false).await?;
        Ok(self.watched(Lifeline::on(session, self.clock.clone()).await?))
    }

    /// Since when something is held that is got now.
    fn since(&self) -> Since {
        Since { wall: self.clock.wall(), moment: self.clock.now() }
    }

    fn watched(self: &Arc<Self>, line: Arc<Lifeline>) -> Arc<Lifeline> {
        tokio::spawn(watch(Arc::downgrade(self), line.clone(), self.closing.clone()));
        line
    }
}

/// Tells of a session's end as soon as its socket does.
async fn watch(store: Weak<SessionStore>, line: Arc<Lifeline>, closing: CancellationToken) {
    tokio::select! {
        () = line.session.ended() => {}
        () = closing.cancelled() => return,
    }
    if let Some(store) = store.upgrade() {
        store.table.lock().session_ended(&line, store.clock.now());
        store.ended.notify_one();
    }
}

impl fmt::Debug for SessionStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SessionStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Drop for SessionStore {
    fn drop(&mut self) {
        self.closing.cancel();
        for waiting in self.table.get_mut().waiting.values() {
            waiting.cancel.cancel();
        }
    }
}

impl Backend for SessionStore {
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
        reply(Operation::Wait, Some(claim.name.clone()), async move { self.attend(&claim).await })
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
        reply(Operation::Settle, lock, async move { self.settle_claims(&claims).await })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        let lock = only(&holds, |hold| &hold.name);
        reply(Operation::Renew, lock, async move { self.renew_holds(&holds).await })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        let lock = only(&holds, |hold| &hold.name);
        reply(Operation::Release, lock, self.release_holds(holds))
    }

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        reply(Operation::Inspect, Some(name.clone()), async move { self.look_at(&name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        reply(Operation::List, None, async move { self.look_at_all(&prefix).await })
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        reply(Operation::ForceRelease, Some(name.clone()), async move {
            self.force(&name, &forced).await
        })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        reply(Operation::Examine, None, async move {
            let session = self.aside.session().await?;
            let mut findings = examine::server(&session).await?;
            findings.push(examine::tokens(&session).await?);
            findings.push(examine::letting_go(session.version));
            Ok(findings)
        })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move {
            self.ended.notified().await;
            Ok(Hint::All)
        })
    }
}
