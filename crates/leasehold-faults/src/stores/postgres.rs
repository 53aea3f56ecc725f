//! PostgreSQL, in both modes, on a server of its own.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::postgres;
use leasehold::clock::Clock;

use crate::servers::Postgres;
use leasehold_conformance::fixture::{Opening, StoreUnderTest, Time};

/// A server, and how clients come to it.
#[derive(Debug)]
pub struct PostgresStore {
    server: Arc<Postgres>,
    url: String,
    lag: Duration,
}

impl PostgresStore {
    /// Lease mode, on a fresh server.
    pub fn lease() -> Self {
        Self::on(fresh(), "lease")
    }

    /// Session mode, on a fresh server.
    pub fn session() -> Self {
        // The janitor of a session ends what nobody renewed.
        Self { lag: Duration::from_secs(1), ..Self::on(fresh(), "session") }
    }

    /// This mode, on this server.
    pub fn on(server: Arc<Postgres>, mode: &str) -> Self {
        let url = format!("{}?mode={mode}", server.url());
        Self { server, url, lag: Duration::ZERO }
    }

    /// The same server, reached by this URL.
    pub fn through(self, url: impl Into<String>) -> Self {
        Self { url: url.into(), ..self }
    }

    /// The server.
    pub fn server(&self) -> &Arc<Postgres> {
        &self.server
    }
}

fn fresh() -> Arc<Postgres> {
    Arc::new(Postgres::start(&[]).expect("a server"))
}

impl StoreUnderTest for PostgresStore {
    fn open(&self, clock: Clock) -> Opening<'_> {
        Box::pin(async move { postgres::open(&self.url, clock).await.expect("it opens") })
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn lag(&self) -> Duration {
        self.lag
    }
}
