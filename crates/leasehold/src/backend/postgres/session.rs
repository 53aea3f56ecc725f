//! Session mode: advisory locks, which end with the session that holds them.
//!
//! All locks that are free when they are asked for share one session. A claim that has to wait
//! blocks a session of its own, and its lock stays there. A third kind of session only looks.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::ledger::Ledger;
use self::lifeline::Lifeline;
use super::connection::{Session, Statement, odd_answer};
use super::connector::{self, Connector};
use super::url::Settings;
use super::{STORE, key, schema};
use crate::backend::Hint;
use crate::backend::kit::hints::Hints;
use crate::backend::kit::reconnect::Reconnect;
use crate::backend::kit::verbs::verbs;
use crate::clock::Clock;
use crate::detach::Detacher;
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};

mod acquire;
mod admin;
mod hold;
mod janitor;
mod ledger;
mod lifeline;
mod statements;
mod wait;

const GUARANTEES: Guarantees = Guarantees {
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
    ..Guarantees::of(STORE)
};

/// The store in session mode.
pub(super) struct SessionStore {
    settings: Arc<Settings>,
    clock: Clock,
    ledger: Mutex<Ledger>,
    /// The session that many locks share.
    shared: Reconnect<Arc<Lifeline>>,
    /// Lists, inspects, publishes and sweeps on a session of its own: none of that delays a lock.
    observer: Connector,
    /// Rung when there is something to look after.
    work: Notify,
    hints: Hints,
    detacher: Detacher,
    closing: CancellationToken,
}

verbs!(SessionStore, STORE, |_store| &GUARANTEES, Limits::new(256, 2).in_halves());

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
        let shared = Lifeline::on(first, clock.clone(), true).await?;
        let store = Arc::new(Self {
            shared: Reconnect::new(clock.clone(), Duration::ZERO),
            observer: Connector::new(settings.clone(), clock.clone(), false, None),
            settings,
            clock,
            ledger: Mutex::default(),
            work: Notify::new(),
            hints: Hints::default(),
            detacher: Detacher::on(Handle::current()),
            closing: CancellationToken::new(),
        });
        store.observer.adopt(second).await?;
        store.shared.put(store.watched(shared));
        store.spawn(janitor::look_after(Arc::downgrade(&store)));
        Ok(store)
    }

    /// The session that many locks share, or a new one, ready for this TTL.
    async fn shared(self: &Arc<Self>, ttl: Duration) -> Result<Arc<Lifeline>> {
        let lifeline = self.shared.get(|| self.connect(true)).await?;
        if !lifeline.carries(ttl) {
            Box::pin(lifeline.carry(ttl)).await?;
        }
        Ok(lifeline)
    }

    /// A new session to carry one lock or many, whose end is noticed.
    async fn connect(self: &Arc<Self>, shared: bool) -> Result<Arc<Lifeline>> {
        let session = Session::connect(&self.settings, &self.settings.config, None, false).await?;
        Ok(self.watched(Lifeline::on(session, self.clock.clone(), shared).await?))
    }

    fn watched(self: &Arc<Self>, lifeline: Arc<Lifeline>) -> Arc<Lifeline> {
        self.spawn(watch(Arc::downgrade(self), lifeline.clone()));
        lifeline
    }

    /// Runs this for as long as the store is used.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        tokio::spawn(self.closing.clone().run_until_cancelled_owned(task));
    }

    /// Carries this out, also when the caller is gone. It has begun when this returns.
    fn carry_out<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> impl Future<Output = Result<T>> + Send {
        self.detacher.begin(work).map(|done| {
            done.unwrap_or_else(|| {
                let message = "the request was dropped: the store's code panicked, or the runtime \
                               that it was connected on has ended";
                Err(Error::new(ErrorKind::Internal, message))
            })
        })
    }
}

/// Notices a session's end as soon as its socket does.
async fn watch(store: Weak<SessionStore>, lifeline: Arc<Lifeline>) {
    lifeline.session.ended().await;
    if let Some(store) = store.upgrade() {
        store.ledger.lock().session_ended(&lifeline, store.clock.now());
        store.hints.announce(Hint::All);
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
    }
}
