//! The outcomes of [`Once`](crate::fence::Once) in PostgreSQL.

use std::fmt;
use std::sync::Arc;

use tokio_postgres::Client;

use super::KIND;
use crate::fence::error::{FenceError, StaleToken, signed, unsigned};
use crate::fence::once::{Answer, Outcomes, Standing};
use crate::fence::rejection::rejected;
use crate::token::Token;

/// Outcomes in the table `leasehold_fence.outcome`. Cheap to clone. Needs
/// [`install`](super::install).
#[derive(Clone)]
pub struct PostgresOutcomes(Arc<Client>);

impl PostgresOutcomes {
    /// The outcomes in the database of this connection.
    pub fn new(client: Arc<Client>) -> Self {
        Self(client)
    }

    async fn look(&self, key: &str) -> Result<(Option<Token>, Standing), FenceError> {
        let sql = "select token, outcome from leasehold_fence.outcome where key = $1";
        let row = self.0.query_opt(sql, &[&key]).await?;
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
            if self.0.execute(include_str!("begin.sql"), &[&key, &number]).await? > 0 {
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
            if self.0.execute(sql, &[&key, &signed(token)?, &outcome]).await? > 0 {
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
