//! A session that carries locks: when it ends, they do.
//!
//! The server is told to let go of a client that says nothing for one and a half of the
//! longest TTL it carries; the client knows of its loss after one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::super::connection::Session;
use super::super::error::explain;
use super::super::url::Settings;
use super::verbs;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// `idle_session_timeout` and `client_connection_check_interval` came with this version.
const FOURTEEN: i32 = 140_000;

#[derive(Debug)]
pub(super) struct Lifeline {
    pub(super) session: Session,
    clock: Clock,
    /// The longest TTL it carries, in microseconds.
    longest: AtomicU64,
    /// Held while the server is told of a longer one: a shorter one must not be told later.
    telling: tokio::sync::Mutex<()>,
    /// When the last question was sent, in nanoseconds.
    asked: AtomicU64,
}

impl Lifeline {
    /// Makes a session ready to carry locks.
    pub(super) async fn on(session: Session, clock: Clock) -> Result<Arc<Self>> {
        let not_applied = |error| {
            let error: Error = explain(error, &session.place);
            Error::new(error.kind().clone(), error.to_string())
        };
        // A blocking lock waits for as long as it takes; what ends without us must be noticed.
        let mut prepare = String::from("set lock_timeout = 0;");
        if session.version >= FOURTEEN {
            prepare.push_str("set client_connection_check_interval = '1s';");
        }
        session.client.batch_execute(&prepare).await.map_err(not_applied)?;
        // Tokens need not wait for the disk: see lift(), which does.
        let lift = "select leasehold.lift()";
        session.client.batch_execute(lift).await.map_err(not_applied)?;
        let rest = "select set_config('synchronous_commit', 'off', false), leasehold.hearing()";
        let rows = session.client.query_typed(rest, &[]).await.map_err(not_applied)?;
        // The server may have ended sessions whose clients do not know it yet (ADR 12).
        let hearing: Option<i64> = rows.first().and_then(|row| row.get(1));
        let hearing = hearing.and_then(|left| u64::try_from(left).ok()).unwrap_or(0);
        if hearing > 0 {
            clock.sleep(Duration::from_micros(hearing)).await;
        }
        let asked = AtomicU64::new(clock.now().as_nanos());
        let (longest, telling) = (AtomicU64::new(0), tokio::sync::Mutex::new(()));
        Ok(Arc::new(Self { session, clock, longest, telling, asked }))
    }

    pub(super) fn backend(&self) -> i32 {
        self.session.backend
    }

    pub(super) fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// Whatever was asked in it, nothing is held any more.
    pub(super) fn has_ended(&self) -> Error {
        let message = format!("the session at {} has ended", self.session.place);
        Error::new(ErrorKind::Unreachable, message)
    }

    /// Whether the server keeps locks with this TTL.
    pub(super) fn carries(&self, ttl: Duration) -> bool {
        micros(ttl) <= self.longest.load(Ordering::Acquire)
    }

    /// Makes the server keep locks with this TTL, and not for much longer.
    pub(super) async fn carry(&self, ttl: Duration) -> Result<()> {
        if self.carries(ttl) {
            return Ok(());
        }
        let _alone = self.telling.lock().await;
        if self.carries(ttl) {
            return Ok(());
        }
        let wanted = micros(ttl);
        let millis = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX).min(1_000_000_000);
        let patience = (millis + millis / 2).max(1_000);
        let (idle, probes) = ((millis / 3_000).max(1), (millis / 6_000).max(1));
        // The latter four for a host that vanished: nothing is idle then, it is just not there.
        let mut set = format!(
            "set tcp_keepalives_idle = {idle}; set tcp_keepalives_interval = {probes}; \
             set tcp_keepalives_count = 6; set tcp_user_timeout = {patience};"
        );
        if self.session.version >= FOURTEEN {
            set.push_str(&format!("set idle_session_timeout = {patience};"));
        }
        let told = self.session.client.batch_execute(&set).await;
        told.map_err(|error| {
            let error = explain(error, &self.session.place);
            Error::new(error.kind().clone(), error.to_string())
        })?;
        self.longest.fetch_max(wanted, Ordering::Release);
        Ok(())
    }

    /// How long it may be silent before it should say something.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        let longest = Duration::from_micros(self.longest.load(Ordering::Acquire));
        let asked = Moment::from_nanos(self.asked.load(Ordering::Acquire));
        !longest.is_zero() && asked + longest / 5 <= now
    }

    /// Says something, so that the server knows that its client is there.
    pub(super) async fn ping(&self) -> Result<()> {
        self.asked.store(self.clock.now().as_nanos(), Ordering::Release);
        self.session.rows(&verbs::PING, &[]).await.map(drop)
    }

    /// Ends the statement that is under way on it.
    pub(super) async fn cancel(&self, settings: &Settings) {
        let token = self.session.client.cancel_token();
        let cancelling = token.cancel_query(settings.tls.clone());
        match tokio::time::timeout(settings.connect_timeout, cancelling).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::debug!(%error, "cannot cancel a wait"),
            Err(_) => tracing::debug!("cannot cancel a wait in time"),
        }
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}
