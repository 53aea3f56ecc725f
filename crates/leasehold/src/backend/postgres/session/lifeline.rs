//! A session that carries locks: when it ends, they do.
//!
//! The server is set to end the session of a client that is silent for one and a half of the
//! longest TTL it carries; the client knows of its loss after one.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::Row;
use tokio_postgres::types::FromSqlOwned;

use super::super::error::explain;
use super::super::url::Settings;
use super::key::{Key, shown};
use super::statements::*;
use super::{Session, Statement};
use crate::backend::kit::reconnect::Connected;
use crate::backend::kit::time::{from_micros, micros};
use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};

/// `idle_session_timeout` and `client_connection_check_interval` came with this version.
const FOURTEEN: i32 = 140_000;

/// How often an unlock is sent, when it fails in a session that goes on.
const UNLOCKS: usize = 3;

#[derive(Debug)]
pub(super) struct Lifeline {
    pub(super) session: Session,
    /// Whether many locks share it. Others are kept for claims that wait, once they are free.
    pub(super) shared: bool,
    clock: Clock,
    /// The longest TTL it carries, in microseconds.
    longest: AtomicI64,
    /// Held while its time-outs are set: those of a shorter TTL must not come later.
    setting: tokio::sync::Mutex<()>,
    /// When the last question was sent, in nanoseconds.
    asked: AtomicU64,
}

impl Connected for Arc<Lifeline> {
    fn is_open(&self) -> bool {
        self.session.is_open()
    }
}

impl Lifeline {
    /// Makes a session ready to carry locks.
    pub(super) async fn on(session: Session, clock: Clock, shared: bool) -> Result<Arc<Self>> {
        // A blocking lock waits for as long as it takes; what ends without us must be noticed.
        let mut prepare = String::from("set lock_timeout = 0;");
        if session.version >= FOURTEEN {
            prepare.push_str("set client_connection_check_interval = '1s';");
        }
        set_up(&session, &prepare).await?;
        // Tokens need not wait for the disk: see lift(), which does.
        set_up(&session, "select leasehold.lift()").await?;
        let rest = "select set_config('synchronous_commit', 'off', false), leasehold.hearing()";
        let rows = session.client.query_typed(rest, &[]).await;
        let rows = rows.map_err(|error| not_applied(&session, error))?;
        // The server may have ended sessions whose clients do not know it yet (ADR 12).
        let hearing = rows.first().and_then(|row| row.get::<_, Option<i64>>(1));
        let hearing = from_micros(hearing.unwrap_or(0));
        if !hearing.is_zero() {
            clock.sleep(hearing).await;
        }
        let asked = AtomicU64::new(clock.now().as_nanos());
        let (longest, setting) = (AtomicI64::new(0), tokio::sync::Mutex::new(()));
        Ok(Arc::new(Self { session, shared, clock, longest, setting, asked }))
    }

    pub(super) fn is_open(&self) -> bool {
        self.session.is_open()
    }

    /// Whether the server keeps locks with this TTL.
    pub(super) fn carries(&self, ttl: Duration) -> bool {
        micros(ttl) <= self.longest.load(Ordering::Acquire)
    }

    /// Makes the server keep locks with this TTL, and not for much longer.
    pub(super) async fn carry(&self, ttl: Duration) -> Result<()> {
        let _alone = self.setting.lock().await;
        if self.carries(ttl) {
            return Ok(());
        }
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
        set_up(&self.session, &set).await?;
        self.longest.fetch_max(micros(ttl), Ordering::Release);
        Ok(())
    }

    /// Whether it was silent for so long that it should say something.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        let longest = from_micros(self.longest.load(Ordering::Acquire));
        let asked = Moment::from_nanos(self.asked.load(Ordering::Acquire));
        !longest.is_zero() && asked + longest / 5 <= now
    }

    /// Says something, so that the server knows that this client is alive.
    pub(super) async fn ping(&self) -> Result<()> {
        self.asked.store(self.clock.now().as_nanos(), Ordering::Release);
        self.session.rows(&PING, &[]).await.map(drop)
    }

    /// Tries these keys; a token for each that was got.
    pub(super) async fn try_lock(&self, keys: &[Key]) -> Result<Vec<Option<i64>>> {
        let tokens = |row: Row| {
            let (got, token): (Vec<bool>, Option<i64>) = (row.get(0), row.get(1));
            got.into_iter().map(|got| token.filter(|_| got)).collect()
        };
        self.each(keys, [&TRY_ONE, &TRY, &TRY_TWO], tokens).await
    }

    /// Waits in the server's queue for this key; its token.
    pub(super) async fn lock(&self, key: Key) -> Result<i64> {
        let row = match &key {
            Key::One(key) => self.session.row(&BLOCK, &[key]).await?,
            Key::Two(first, second) => self.session.row(&BLOCK_TWO, &[first, second]).await?,
        };
        Ok(row.get(0))
    }

    /// Whether the session has each of these keys.
    pub(super) async fn prove(&self, keys: &[Key]) -> Result<Vec<bool>> {
        let (high, low, form) = shown(keys.iter().copied());
        Ok(self.session.row(&PROVE, &[&high, &low, &form]).await?.get(0))
    }

    /// Gives these keys back; whether the session had each.
    pub(super) async fn unlock(&self, keys: &[Key]) -> Result<Vec<bool>> {
        self.each(keys, [&UNLOCK_ONE, &UNLOCK, &UNLOCK_TWO], |row| row.get(0)).await
    }

    /// Gives these keys back; whether the session had each. A session that cannot give its locks
    /// back is ended: they would be in everybody's way for as long as it lives.
    pub(super) async fn unlock_surely(&self, keys: &[Key]) -> Result<Vec<bool>> {
        let mut sent = 1;
        loop {
            match self.unlock(keys).await {
                Ok(done) if sent == 1 => return Ok(done),
                // Keys that it no longer has were given back by a statement that failed.
                Ok(done) => return Ok(vec![true; done.len()]),
                Err(error) if sent == UNLOCKS || !self.is_open() => {
                    self.session.close();
                    return Err(error);
                }
                Err(error) => tracing::debug!(%error, "an unlock failed, and is sent again"),
            }
            sent += 1;
        }
    }

    /// Asks for each of these keys: for one alone, for all of one number in one statement, for
    /// those of two numbers one by one.
    async fn each<T: FromSqlOwned + Default>(
        &self,
        keys: &[Key],
        [one, many, two]: [&Statement; 3],
        read: impl FnOnce(Row) -> Vec<T>,
    ) -> Result<Vec<T>> {
        if let [Key::One(key)] = keys {
            return Ok(vec![self.session.row(one, &[key]).await?.get(0)]);
        }
        let number = |key: &Key| if let Key::One(key) = key { Some(*key) } else { None };
        let numbers: Vec<i64> = keys.iter().filter_map(number).collect();
        let mut answers = Vec::new().into_iter();
        if !numbers.is_empty() {
            answers = read(self.session.row(many, &[&numbers]).await?).into_iter();
        }
        let mut all = Vec::with_capacity(keys.len());
        for key in keys {
            all.push(match key {
                Key::One(_) => answers.next().unwrap_or_default(),
                Key::Two(first, second) => {
                    Box::pin(self.session.row(two, &[first, second])).await?.get(0)
                }
            });
        }
        Ok(all)
    }

    /// Ends the statement that is under way in it.
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

async fn set_up(session: &Session, sql: &str) -> Result<()> {
    session.client.batch_execute(sql).await.map_err(|error| not_applied(session, error))
}

/// What a session's set-up failed with: no lock was asked for.
fn not_applied(session: &Session, error: tokio_postgres::Error) -> Error {
    explain(error, &session.place).not_applied()
}
