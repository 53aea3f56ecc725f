//! A connection that is made anew when it broke, and the statements prepared on it.
//!
//! Nothing is sent twice that may have been done: a request whose connection breaks has an unknown
//! outcome.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::TryStreamExt;
use parking_lot::Mutex;
use tokio::sync::{OnceCell, mpsc, watch};
use tokio_postgres::error::SqlState;
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{AsyncMessage, Client, Config, Notification, Row, Socket, Statement};
use tokio_postgres_rustls::MakeRustlsConnect;

use super::defaults::defaults;
use super::error::{explain, not_connected, standby};
use super::schema;
use super::url::Settings;
use crate::error::{Error, ErrorKind, Result};

/// How often a statement is sent again that failed only because others wrote at the same moment.
const REPEATS: u32 = 8;

/// A request to the server: its SQL, and the types of its parameters.
#[derive(Debug)]
pub(super) struct Verb {
    pub(super) sql: &'static str,
    pub(super) types: &'static [Type],
    /// Its place among the prepared statements of a session.
    pub(super) number: usize,
}

/// How many verbs there may be.
const VERBS: usize = 24;

/// One connection.
pub(super) struct Session {
    pub(super) client: Client,
    pub(super) backend: i32,
    pub(super) place: Arc<str>,
    /// The server's version, as 150004.
    pub(super) version: i32,
    prepared: [OnceCell<Statement>; VERBS],
    by_name: bool,
    ended: watch::Receiver<bool>,
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
        let connecting = config.connect(settings.tls.clone());
        let limit = settings.connect_timeout + Duration::from_secs(1);
        let connected = tokio::time::timeout(limit, connecting).await.map_err(|_| {
            let message = format!("{place} did not answer within {} s", limit.as_secs());
            Error::new(ErrorKind::Unreachable, message)
        })?;
        let (client, connection) = connected.map_err(|error| not_connected(error, &place))?;
        let (over, ended) = watch::channel(false);
        let driver = tokio::spawn(async move {
            drive(connection, notifications).await;
            let _ = over.send(true);
        });
        let prepared = [const { OnceCell::const_new() }; VERBS];
        let (backend, version, by_name) = (0, 0, !pooled);
        let mut session =
            Self { client, backend, place, version, prepared, by_name, ended, driver };
        let hello = session.hello(pooled);
        let greeted = tokio::time::timeout(limit, hello).await.map_err(|_| {
            let message = format!("{} does not answer", session.place);
            Error::new(ErrorKind::Unreachable, message)
        })??;
        (session.backend, session.version) = greeted;
        Ok(session)
    }

    /// Asks who is there: the backend's process id, and its version.
    async fn hello(&self, pooled: bool) -> Result<(i32, i32)> {
        let ask = "select pg_is_in_recovery() or current_setting('transaction_read_only')::bool, \
                   pg_backend_pid(), current_setting('server_version_num')::int4";
        let explain = |error| {
            // Nothing of what was wanted has been asked yet.
            let error = explain(error, &self.place);
            Error::new(error.kind().clone(), error.to_string())
        };
        let rows = self.client.query_typed(ask, &[]).await.map_err(explain)?;
        let row = rows.first().ok_or_else(odd_answer)?;
        if row.get::<_, bool>(0) {
            return Err(Error::new(ErrorKind::Refused, standby(&self.place)));
        }
        let (backend, version) = (row.get(1), row.get(2));
        if !pooled {
            self.say(&defaults(version)).await?;
        }
        Ok((backend, version))
    }

    /// Says something that is about this session alone: nothing of what was wanted is asked yet.
    async fn say(&self, sql: &str) -> Result<()> {
        let said = self.client.batch_execute(sql).await;
        said.map_err(|error| {
            let error = explain(error, &self.place);
            Error::new(error.kind().clone(), error.to_string())
        })
    }

    /// There is no pooler in front, as was feared: it may be a session like any other.
    pub(super) async fn unpooled(mut self) -> Result<Self> {
        self.say(&defaults(self.version)).await?;
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
        let mut ended = self.ended.clone();
        // An error means that the driver is gone without a word: ended as well.
        let _ = ended.wait_for(|over| *over).await;
    }

    /// Asks for rows.
    pub(super) async fn rows(
        &self,
        verb: &Verb,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>> {
        let asked = match self.statement(verb) {
            Some(statement) => self.client.query(statement, parameters).await,
            // What happens once must not make the future larger that each request moves.
            None => Box::pin(self.rows_unprepared(verb, parameters)).await,
        };
        asked.map_err(|error| explain(error, &self.place))
    }

    /// Asks for one row.
    pub(super) async fn row(&self, verb: &Verb, parameters: &[&(dyn ToSql + Sync)]) -> Result<Row> {
        let asked = match self.statement(verb) {
            Some(statement) => self.first_row(statement, parameters).await,
            None => {
                let asked = Box::pin(self.rows_unprepared(verb, parameters)).await;
                asked.map(|mut rows| rows.pop())
            }
        };
        asked.map_err(|error| explain(error, &self.place))?.ok_or_else(odd_answer)
    }

    /// The first row of what a prepared statement gives.
    async fn first_row(
        &self,
        statement: &Statement,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Option<Row>, tokio_postgres::Error> {
        // Boxed: it has room for preparing one. With it inside, the futures of requests have more
        // than 1032 bytes, the most for which glibc keeps free ones at hand.
        let parameters = parameters.iter().map(|parameter| *parameter as &dyn ToSql);
        let rows = Box::pin(self.client.query_raw(statement, parameters)).await?;
        let mut rows = std::pin::pin!(rows);
        let first = rows.try_next().await?;
        // To the end: what went wrong may come after the rows.
        while rows.try_next().await?.is_some() {}
        Ok(first)
    }

    /// What was prepared for this request.
    fn statement(&self, verb: &Verb) -> Option<&Statement> {
        if self.by_name { self.prepared[verb.number].get() } else { None }
    }

    /// Asks for rows by a statement that is not prepared yet, or must not be.
    async fn rows_unprepared(
        &self,
        verb: &Verb,
        parameters: &[&(dyn ToSql + Sync)],
    ) -> Result<Vec<Row>, tokio_postgres::Error> {
        if self.by_name {
            let prepare = || self.client.prepare_typed(verb.sql, verb.types);
            let statement = self.prepared[verb.number].get_or_try_init(prepare).await?;
            return self.client.query(statement, parameters).await;
        }
        // A pooler in front: a name would be another session's tomorrow.
        let typed: Vec<_> = parameters.iter().copied().zip(verb.types.iter().cloned()).collect();
        let mut repeats = 0;
        loop {
            let asked = self.client.query_typed(verb.sql, &typed).await;
            match &asked {
                // Its sessions are not ours to set, and their isolation may be serializable. What
                // failed for that was rolled back.
                Err(error) if repeats < REPEATS && not_serialized(error) => repeats += 1,
                _ => return asked,
            }
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

/// Whether a statement failed because of what others wrote meanwhile.
fn not_serialized(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE)
}

pub(super) fn odd_answer() -> Error {
    let message = "the server's answer is not what was asked for; please report this";
    Error::new(ErrorKind::Internal, message).outcome_unknown()
}

async fn drive(
    mut connection: tokio_postgres::Connection<
        Socket,
        <MakeRustlsConnect as tokio_postgres::tls::MakeTlsConnect<Socket>>::Stream,
    >,
    notifications: Option<mpsc::UnboundedSender<Notification>>,
) {
    loop {
        let message = std::future::poll_fn(|cx| connection.poll_message(cx)).await;
        match (message, &notifications) {
            (Some(Ok(AsyncMessage::Notification(told))), Some(sender)) => {
                let _ = sender.send(told);
            }
            (Some(Ok(_)), _) => {}
            (Some(Err(error)), _) => {
                tracing::debug!(%error, "a connection to PostgreSQL broke");
                return;
            }
            (None, _) => return,
        }
    }
}

/// A session that is made anew when it broke.
#[derive(Debug)]
pub(super) struct Wire {
    settings: Arc<Settings>,
    pooled: bool,
    /// What is said in each of its sessions first.
    greeting: Option<String>,
    present: Mutex<Option<Arc<Session>>>,
    /// Held while connecting: one at a time.
    connecting: tokio::sync::Mutex<()>,
}

impl Wire {
    pub(super) fn new(settings: Arc<Settings>, pooled: bool) -> Self {
        let (present, connecting) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Self { settings, pooled, greeting: None, present, connecting }
    }

    /// The same, where each session begins with this statement.
    pub(super) fn greeting(self, greeting: Option<String>) -> Self {
        Self { greeting, ..self }
    }

    /// The session that is open just now.
    pub(super) fn present(&self) -> Option<Arc<Session>> {
        self.present.lock().as_ref().filter(|session| session.is_open()).cloned()
    }

    /// Uses a session that was made elsewhere.
    pub(super) async fn adopt(&self, session: Session) -> Result<Arc<Session>> {
        if let Some(greeting) = &self.greeting
            && let Err(error) = session.say(greeting).await
        {
            // What it calls may be missing where an older state of the database came back.
            tracing::debug!(%error, "a session cannot greet");
            schema::ensure(&session).await?;
            session.say(greeting).await?;
        }
        let session = Arc::new(session);
        *self.present.lock() = Some(session.clone());
        Ok(session)
    }

    /// The open session, or a new one. An error means that nothing was asked.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        match self.present() {
            Some(session) => Ok(session),
            None => Box::pin(self.connect()).await,
        }
    }

    async fn connect(&self) -> Result<Arc<Session>> {
        let _alone = self.connecting.lock().await;
        if let Some(session) = self.present() {
            return Ok(session);
        }
        let settings = &self.settings;
        let session = Session::connect(settings, &settings.config, None, self.pooled).await?;
        self.adopt(session).await
    }
}
