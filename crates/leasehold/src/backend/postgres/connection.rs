//! One connection to the server, and the statements prepared on it.
//!
//! Nothing is sent twice that may have been done: a request whose connection breaks has an unknown
//! outcome.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use tokio::sync::{OnceCell, mpsc};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::TlsStream;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, Notification, Row, Socket};
use tokio_util::sync::CancellationToken;

use super::error::{explain, not_connected, standby};
use super::url::Settings;
use crate::error::{Error, ErrorKind, Result};

/// How often a statement is sent again that failed only because others wrote at the same moment.
const REPEATS: u32 = 8;

/// A request to the server: its SQL, and the types of its parameters.
#[derive(Debug)]
pub(super) struct Statement {
    pub(super) sql: &'static str,
    pub(super) types: &'static [Type],
    /// Its place among the prepared statements of a session.
    pub(super) number: usize,
}

/// How many statements there may be.
const STATEMENTS: usize = 24;

/// The statements of a mode, with the types of their parameters.
macro_rules! statements {
    ($($(#[$comment:meta])* $name:ident($($type:ident),*) = $sql:expr;)*) => {
        #[expect(non_camel_case_types, clippy::upper_case_acronyms)]
        enum Number { $($name),* }
        $($(#[$comment])* pub(super) const $name: Statement =
            Statement { sql: $sql, types: &[$(Type::$type),*], number: Number::$name as usize };)*
    };
}

pub(super) use statements;

/// What our sessions set for themselves: a role, a database or a server may have other defaults,
/// which are meant for other programs.
///
/// Two statements may queue on one connection for another's row, and both time-outs together are
/// shorter than a request's, so that their end is known. (A time-out for statements could come
/// before that.) A stricter isolation would end what has to wait for a row: `could not serialize
/// access`.
///
/// Not here: `default_transaction_read_only`, which may say that a disk is full, and is refused;
/// `synchronous_commit`, which `doctor` judges. Nothing that we ask depends on the search path, on
/// time zones or on how values are printed.
const DEFAULTS: &str = "set default_transaction_isolation = 'read committed'; \
                        set lock_timeout = '800ms'; set statement_timeout = 0; \
                        set idle_in_transaction_session_timeout = 0;";

/// The statements that a session of our own begins with, on a server of this version.
fn defaults(version: i32) -> String {
    let mut set = DEFAULTS.to_owned();
    if version >= 140_000 {
        // A session that ends says that its client is gone.
        set.push_str(" set idle_session_timeout = 0;");
    }
    if version >= 170_000 {
        // It ends a session that waits for a lock.
        set.push_str(" set transaction_timeout = 0;");
    }
    set
}

/// One connection.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) backend: i32,
    pub(super) place: Arc<str>,
    /// The server's version, as 150004.
    pub(super) version: i32,
    prepared: [OnceCell<tokio_postgres::Statement>; STATEMENTS],
    by_name: bool,
    /// Cancelled when the connection has ended.
    ended: CancellationToken,
    driver: tokio::task::JoinHandle<()>,
}

impl Session {
    /// Connects, and refuses a server that cannot write.
    pub(super) async fn connect(
        settings: &Settings,
        config: &Config,
        notifications: Option<mpsc::UnboundedSender<Notification>>,
        pooled: bool,
    ) -> Result<Self> {
        let place: Arc<str> = settings.place.as_str().into();
        let unreachable = |message| Error::new(ErrorKind::Unreachable, message).not_applied();
        let limit = settings.connect_timeout + Duration::from_secs(1);
        let connecting = tokio::time::timeout(limit, config.connect(settings.tls.clone()));
        let connected = connecting.await.map_err(|_| {
            unreachable(format!("{place} did not answer within {} s", limit.as_secs()))
        })?;
        let (client, connection) = connected.map_err(|error| not_connected(error, &place))?;
        let ended = CancellationToken::new();
        let over = ended.clone().drop_guard();
        let driver = tokio::spawn(async move {
            let _over = over;
            drive(connection, notifications).await;
        });
        let prepared = [const { OnceCell::const_new() }; STATEMENTS];
        let (backend, version, by_name) = (0, 0, !pooled);
        let mut session =
            Self { client, backend, place, version, prepared, by_name, ended, driver };
        let hello = tokio::time::timeout(limit, session.hello(pooled));
        (session.backend, session.version) = hello
            .await
            .map_err(|_| unreachable(format!("{} does not answer", session.place)))??;
        Ok(session)
    }

    /// Asks who is there: the backend's process id, and its version.
    async fn hello(&self, pooled: bool) -> Result<(i32, i32)> {
        let ask = "select pg_is_in_recovery() or current_setting('transaction_read_only')::bool, \
                   pg_backend_pid(), current_setting('server_version_num')::int4";
        let row = self.ask(ask).await.map_err(Error::not_applied)?.ok_or_else(odd_answer)?;
        if row.get::<_, bool>(0) {
            return Err(Error::new(ErrorKind::Refused, standby(&self.place)));
        }
        let (backend, version) = (row.get(1), row.get(2));
        if !pooled {
            self.set_up(&defaults(version)).await?;
        }
        Ok((backend, version))
    }

    /// Runs what is about this session alone: an error of it means that nothing else was asked.
    pub(super) async fn set_up(&self, sql: &str) -> Result<()> {
        self.run(sql).await.map_err(Error::not_applied)
    }

    /// Runs statements that are not prepared and give nothing.
    pub(super) async fn run(&self, sql: &str) -> Result<()> {
        let ran = self.client.batch_execute(sql).await;
        ran.map_err(|error| explain(error, &self.place))
    }

    /// The first row of a statement that is not prepared.
    pub(super) async fn ask(&self, sql: &str) -> Result<Option<Row>> {
        let asked = self.client.query_typed(sql, &[]).await;
        Ok(asked.map_err(|error| explain(error, &self.place))?.into_iter().next())
    }

    /// There is no pooler in front after all: this is a session like any other.
    pub(super) async fn unpooled(mut self) -> Result<Self> {
        self.set_up(&defaults(self.version)).await?;
        self.by_name = true;
        Ok(self)
    }

    /// Whether it can still be used.
    pub(super) fn is_open(&self) -> bool {
        !self.client.is_closed()
    }

    /// Ends the connection, whoever else still knows it.
    pub(super) fn close(&self) {
        self.driver.abort();
    }

    /// Completes when the connection has ended.
    pub(super) async fn ended(&self) {
        self.ended.cancelled().await;
    }

    /// Asks for one row.
    pub(super) async fn row(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Row> {
        self.rows(statement, parameters).await?.pop().ok_or_else(odd_answer)
    }

    /// Asks for rows.
    pub(super) async fn rows(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let asked = match self.prepared[statement.number].get() {
            Some(prepared) => self.rows_prepared(prepared, parameters).await,
            // What happens once must not make the future larger that each request moves.
            None => Box::pin(self.rows_unprepared(statement, parameters)).await,
        };
        asked.map_err(|error| explain(error, &self.place))
    }

    async fn rows_prepared(
        &self,
        prepared: &tokio_postgres::Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        // Boxed: it has room for preparing one. With it inside, the futures of requests have more
        // than 1032 bytes, the most for which glibc keeps free ones at hand.
        let parameters = parameters.iter().map(|parameter| *parameter as &dyn ToSql);
        Box::pin(self.client.query_raw(prepared, parameters)).await?.try_collect().await
    }

    /// Asks for rows by a statement that is not prepared yet, or must not be.
    async fn rows_unprepared(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        let Statement { sql, types, number } = *statement;
        if self.by_name {
            let prepare = || self.client.prepare_typed(sql, types);
            let prepared = self.prepared[number].get_or_try_init(prepare).await?;
            return self.rows_prepared(prepared, parameters).await;
        }
        // A pooler in front: a name would be another session's tomorrow.
        let typed: Vec<_> = parameters.iter().copied().zip(types.iter().cloned()).collect();
        let mut repeats = 0;
        loop {
            let asked = self.client.query_typed(sql, &typed).await;
            let code = asked.as_ref().err().and_then(tokio_postgres::Error::code);
            // Its sessions are not ours to set, and their isolation may be serializable. What
            // failed for that was rolled back.
            if repeats == REPEATS || code != Some(&SqlState::T_R_SERIALIZATION_FAILURE) {
                return asked;
            }
            repeats += 1;
            tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=20))).await;
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Session");
        shown.field("backend", &self.backend).field("open", &self.is_open()).finish()
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn odd_answer() -> Error {
    let message = "the server's answer is not what was asked for; please report this";
    Error::new(ErrorKind::Internal, message)
}

async fn drive(
    mut connection: Connection<Socket, impl TlsStream + Unpin>,
    notifications: Option<mpsc::UnboundedSender<Notification>>,
) {
    loop {
        match std::future::poll_fn(|cx| connection.poll_message(cx)).await {
            Some(Ok(AsyncMessage::Notification(notification))) => {
                if let Some(sender) = &notifications {
                    let _ = sender.send(notification);
                }
            }
            Some(Ok(_)) => {}
            Some(Err(error)) => {
                tracing::debug!(%error, "a connection to PostgreSQL broke");
                return;
            }
            None => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_only_told_what_it_knows() {
        let newer = ["idle_session_timeout", "transaction_timeout"];
        for (version, known) in [(130_000, 0), (140_000, 1), (160_004, 1), (170_000, 2)] {
            let told = defaults(version);
            let count = newer.iter().filter(|name| told.contains(&format!("set {name}"))).count();
            assert_eq!(count, known, "{version}: {told}");
        }
    }
}
