//! The outcomes of [`Once`](crate::Once) in a SQLite file.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension};

use super::KIND;
use crate::error::{FenceError, StaleToken, signed, unsigned};
use crate::outcome::Outcome;
use crate::outcomes::{Answer, DEFAULT_KEEP, Outcomes, PRUNED, Standing};
use crate::rejection::rejected;
use crate::token::Token;

/// Outcomes in a SQLite file, for the processes of one machine. Cheap to clone.
#[derive(Clone)]
pub struct SqliteOutcomes {
    connection: Arc<Mutex<Connection>>,
    keep: Duration,
}

impl SqliteOutcomes {
    /// The outcomes in this file, which is created if it is not there.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when it cannot be written.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, FenceError> {
        Self::on(Connection::open(path)?)
    }

    /// The outcomes in the database of this connection, in the table `leasehold_outcome`.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when it cannot be written.
    pub fn on(connection: Connection) -> Result<Self, FenceError> {
        connection.busy_timeout(Duration::from_secs(10))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        // An outcome that was told must survive a power cut.
        connection.pragma_update(None, "synchronous", "full")?;
        connection.execute_batch(include_str!("outcomes.sql"))?;
        Ok(Self { connection: Arc::new(Mutex::new(connection)), keep: DEFAULT_KEEP })
    }

    /// For how long outcomes are kept, at least, by this machine's clock: [`DEFAULT_KEEP`], unless
    /// told; [`Duration::MAX`] is for ever. Each new key removes some that are older. What was begun and
    /// not finished stays.
    #[must_use]
    pub fn keep(mut self, keep: Duration) -> Self {
        self.keep = keep;
        self
    }

    fn with<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, FenceError> + Send + 'static,
    ) -> Answer<'static, T> {
        let connection = self.connection.clone();
        Box::pin(async move {
            let working = tokio::task::spawn_blocking(move || work(&connection.lock()));
            working.await.unwrap_or_else(|error| {
                Err(FenceError::failed("the outcomes", Outcome::Unknown, error))
            })
        })
    }
}

impl Outcomes for SqliteOutcomes {
    fn standing<'a>(&'a self, key: &'a str) -> Answer<'a, Standing> {
        let key = key.to_owned();
        self.with(move |connection| Ok(look(connection, &key)?.1))
    }

    fn begin<'a>(&'a self, key: &'a str, token: Token) -> Answer<'a, Standing> {
        let (key, keep) = (key.to_owned(), self.keep);
        self.with(move |connection| {
            let number = signed(token)?;
            let transaction = rusqlite::Transaction::new_unchecked(
                connection,
                rusqlite::TransactionBehavior::Immediate,
            )?;
            let (_, before) = look(&transaction, &key)?;
            if matches!(before, Standing::Finished(_)) {
                return Ok(before);
            }
            let begun = transaction.execute(include_str!("begin.sql"), (&key, number))?;
            if let (0, Standing::Running(seen)) = (begun, &before) {
                return Err(rejected(KIND, key, StaleToken { given: token, seen: *seen }).into());
            }
            if before == Standing::New {
                let seconds = i64::try_from(keep.as_secs()).unwrap_or(i64::MAX);
                transaction.execute(include_str!("prune.sql"), (seconds, PRUNED))?;
            }
            transaction.commit()?;
            Ok(before)
        })
    }

    fn finish<'a>(&'a self, key: &'a str, token: Token, outcome: &'a [u8]) -> Answer<'a, ()> {
        let (key, outcome) = (key.to_owned(), outcome.to_owned());
        self.with(move |connection| {
            let sql = "update leasehold_outcome set outcome = ?3, changed_at = current_timestamp \
                       where key = ?1 and token = ?2 and outcome is null";
            if connection.execute(sql, (&key, signed(token)?, &outcome))? > 0 {
                return Ok(());
            }
            match look(connection, &key)? {
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

fn look(connection: &Connection, key: &str) -> Result<(Option<Token>, Standing), FenceError> {
    let sql = "select token, outcome from leasehold_outcome where key = ?1";
    let row = connection
        .query_row(sql, [key], |row| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<Vec<u8>>>(1)?)))
        .optional()?;
    Ok(match row {
        None => (None, Standing::New),
        Some((token, None)) => (Some(unsigned(token)), Standing::Running(unsigned(token))),
        Some((token, Some(outcome))) => (Some(unsigned(token)), Standing::Finished(outcome)),
    })
}

impl fmt::Debug for SqliteOutcomes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteOutcomes").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn outcomes_are_kept_for_as_long_as_told() {
        let day = Duration::from_secs(24 * 60 * 60);
        let token = Token::new(1);
        for (keep, kept) in [(day, false), (day * 3, true), (Duration::MAX, true)] {
            let outcomes = SqliteOutcomes::on(Connection::open_in_memory().unwrap()).unwrap();
            let outcomes = outcomes.keep(keep);
            outcomes.begin("done", token).await.unwrap();
            outcomes.finish("done", token, b"it").await.unwrap();
            let age = "update leasehold_outcome set changed_at = datetime('now', '-2 days')";
            outcomes.connection.lock().execute(age, ()).unwrap();
            outcomes.begin("next", token).await.unwrap();
            let standing = outcomes.standing("done").await.unwrap();
            assert_eq!(standing == Standing::Finished(b"it".to_vec()), kept, "{keep:?}");
        }
    }
}
