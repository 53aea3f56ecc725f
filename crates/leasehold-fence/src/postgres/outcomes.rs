//! The outcomes of [`Once`](crate::Once) in PostgreSQL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Client;

use super::KIND;
use crate::error::{FenceError, StaleToken, signed, unsigned};
use crate::outcomes::{Answer, DEFAULT_KEEP, Outcomes, PRUNED, Standing};
use crate::rejection::rejected;
use crate::token::Token;

/// Longer than this is for ever: the server cannot count back from now without end.
const FOR_EVER: Duration = Duration::from_secs(1_000 * 365 * 24 * 60 * 60);

/// Outcomes in the table `leasehold_fence.outcome`. Cheap to clone. Needs
/// [`install`](super::install), and the right to delete from that table, or nothing is removed.
#[derive(Clone)]
pub struct PostgresOutcomes {
    client: Arc<Client>,
    keep: Duration,
}

impl PostgresOutcomes {
    /// The outcomes in the database of this connection.
    pub fn new(client: Arc<Client>) -> Self {
        Self { client, keep: DEFAULT_KEEP }
    }

    /// For how long outcomes are kept, at least, by the server's clock: [`DEFAULT_KEEP`], unless
    /// told; [`Duration::MAX`] is for ever. Each new key removes some that are older. What was begun and
    /// not finished stays.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    /// The key is begun already: that old ones stay is no reason to fail.
    async fn prune(&self) {
        if self.keep > FOR_EVER {
            return;
        }
        let sql = include_str!("prune.sql");
        if let Err(error) = self.client.execute(sql, &[&self.keep.as_secs_f64(), &PRUNED]).await {
            tracing::warn!(target: "leasehold", %error, "old outcomes cannot be removed");
        }
    }

    async fn look(&self, key: &str) -> Result<(Option<Token>, Standing), FenceError> {
        let sql = "select token, outcome from leasehold_fence.outcome where key = $1";
        let row = self.client.query_opt(sql, &[&key]).await?;
        let row = row.map(|row| (unsigned(row.get(0)), row.get::<_, Option<Vec<u8>>>(1)));
        Ok(match row {
            None => (None, Standing::New),
            Some((token, None)) => (Some(token), Standing::Running(token)),
            Some((token, Some(outcome))) => (Some(token), Standing::Finished(outcome)),
        })
    }
}

impl Outcomes for PostgresOutcomes {
    fn standing<'a>(&'a self, key: &'a str) -> Answer<'a, Standing> {
        Box::pin(async move { Ok(self.look(key).await?.1) })
    }

    fn begin<'a>(&'a self, key: &'a str, token: Token) -> Answer<'a, Standing> {
        Box::pin(async move {
            let number = signed(token)?;
            let (_, before) = self.look(key).await?;
            if matches!(before, Standing::Finished(_)) {
                return Ok(before);
            }
            if self.client.execute(include_str!("begin.sql"), &[&key, &number]).await? > 0 {
                if before == Standing::New {
                    self.prune().await;
                }
                return Ok(before);
            }
            match self.look(key).await? {
                (_, Standing::Running(seen)) if seen > token => {
                    Err(rejected(KIND, key, StaleToken { given: token, seen }).into())
                }
                (_, standing) => Ok(standing),
            }
        })
    }

    fn finish<'a>(&'a self, key: &'a str, token: Token, outcome: &'a [u8]) -> Answer<'a, ()> {
        Box::pin(async move {
            let sql = "update leasehold_fence.outcome set outcome = $3, changed_at = now() \
                       where key = $1 and token = $2 and outcome is null";
            if self.client.execute(sql, &[&key, &signed(token)?, &outcome]).await? > 0 {
                return Ok(());
            }
            match self.look(key).await? {
                // Ours, from a call whose answer was lost.
                (Some(seen), Standing::Finished(_)) if seen == token => Ok(()),
                (Some(seen), _) => {
                    Err(rejected(KIND, key, StaleToken { given: token, seen }).into())
                }
                (None, _) => Err(FenceError::NotFound { resource: format!("the key {key:?}") }),
            }
        })
    }
}

impl fmt::Debug for PostgresOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresOutcomes").finish_non_exhaustive()
    }
}
