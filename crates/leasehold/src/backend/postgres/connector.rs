//! Sessions that are made again when they broke, and whether a pooler is in front of the server.

use std::sync::Arc;
use std::time::Duration;

use super::connection::Session;
use super::schema;
use super::url::Settings;
use crate::backend::kit::reconnect::{Connected, Reconnect};
use crate::clock::Clock;
use crate::error::Result;

/// How often each of two sessions is asked for its backend. A pooler that lends the session that
/// was returned last shows at once; one that takes turns, when its turn comes round.
const ROUNDS: usize = 4;

impl Connected for Arc<Session> {
    fn is_open(&self) -> bool {
        Session::is_open(self)
    }
}

/// Makes a session, and another one when that broke.
#[derive(Debug)]
pub(super) struct Connector {
    settings: Arc<Settings>,
    pooled: bool,
    /// The statement that each of its sessions begins with.
    greeting: Option<String>,
    session: Reconnect<Arc<Session>>,
}

impl Connector {
    pub(super) fn new(
        settings: Arc<Settings>,
        clock: Clock,
        pooled: bool,
        greeting: Option<String>,
    ) -> Self {
        Self { settings, pooled, greeting, session: Reconnect::new(clock, Duration::ZERO) }
    }

    /// The session that is open just now.
    pub(super) fn current(&self) -> Option<Arc<Session>> {
        self.session.current()
    }

    /// The open session, or a new one. An error means that nothing was asked.
    pub(super) async fn session(&self) -> Result<Arc<Session>> {
        let connect = async || {
            let settings = &self.settings;
            let session = Session::connect(settings, &settings.config, None, self.pooled).await?;
            self.greeted(session).await
        };
        self.session.get(connect).await
    }

    /// Uses a session that was made elsewhere.
    pub(super) async fn adopt(&self, session: Session) -> Result<()> {
        self.session.put(self.greeted(session).await?);
        Ok(())
    }

    async fn greeted(&self, session: Session) -> Result<Arc<Session>> {
        if let Some(greeting) = &self.greeting
            && let Err(error) = session.set_up(greeting).await
        {
            // What it calls may be missing where an older state of the database came back.
            tracing::debug!(%error, "a session cannot greet");
            schema::ensure(&session).await?;
            session.set_up(greeting).await?;
        }
        Ok(Arc::new(session))
    }
}

/// Whether a transaction pooler is between us and the server. It lends a server's session for one
/// transaction, so two connections of ours meet in the same backend, or one of them changes it.
pub(super) async fn are_pooled(first: &Session, second: &Session) -> Result<bool> {
    let mut backends = [vec![first.backend], vec![second.backend]];
    for _ in 0..ROUNDS {
        for (session, backends) in [first, second].into_iter().zip(&mut backends) {
            let asked = session.ask("select pg_backend_pid()").await?;
            backends.push(asked.map_or(0, |row| row.get(0)));
        }
    }
    let moved = |backends: &Vec<i32>| backends.iter().any(|backend| *backend != backends[0]);
    let shared = backends[0].iter().any(|backend| backends[1].contains(backend));
    Ok(backends.iter().any(moved) || shared)
}
