//! PostgreSQL tables that take no late writes.
//!
//! It is the database that checks, so it holds for psql and for every language:
//!
//! * [`install`] (or [`INSTALL`], to print) creates the schema `leasehold_fence`.
//! * [`guard_table`] guards a whole table: column, CHECK, triggers. A transaction that writes
//!   to it first [`present`]s its token, which also raises the mark; [`advance`] does only that.
//! * [`guard_rows`] does the same with a fence for each row, by its primary key:
//!   [`present_row`].
//! * [`Rows`] with [`update`], [`put`], [`delete`], [`advance_row`]: conditional writes of single rows, without
//!   triggers.
//! * [`claim`] and [`finish`]: state transitions.
//! * [`PostgresOutcomes`]: outcomes by key, for `leasehold::fence::Once`.
//!
//! Two transactions with different tokens wait for each other at the mark, so an older one
//! cannot commit after a newer one did. Under `repeatable read` the one that waited gets
//! a serialization failure instead, as usual.
//!
//! A statement whose answer was lost (`outcome()` is unknown) may be sent again with the same
//! token, if it is repeatable.

use tokio_postgres::error::Severity;
use tokio_postgres::{GenericClient, Transaction};

use super::error::{FenceError, StaleToken, signed};
use super::rejection::rejected;
use crate::outcome::Outcome;
use crate::token::Token;

pub use super::rows::Rows;
pub use outcomes::PostgresOutcomes;
pub use row::{advance_row, delete, put, update};
pub use transition::{claim, finish};

mod outcomes;
mod row;
mod transition;

/// The kind of resource, in metrics and events.
const KIND: &str = "postgres";

/// The SQL that creates the schema `leasehold_fence`; may be run again.
pub const INSTALL: &str = concat!(
    include_str!("postgres/install/marks.sql"),
    "\n",
    include_str!("postgres/install/keys.sql"),
    "\n",
    include_str!("postgres/install/carry.sql"),
    "\n",
    include_str!("postgres/install/guards.sql"),
    "\n",
    include_str!("postgres/install/grants.sql"),
);

/// Creates or updates the schema `leasehold_fence`. Needs the right to create schemas.
///
/// # Errors
///
/// [`FenceError::Failed`] with what the database says.
pub async fn install(client: &(impl GenericClient + Sync)) -> Result<(), FenceError> {
    Ok(client.batch_execute(INSTALL).await?)
}

/// A migration that installs the fence and guards a table: to be printed, reviewed, and run
/// by psql or whatever runs migrations.
pub fn migration(table: &str, resource: Option<&str>) -> String {
    let target = super::rows::literal(&super::rows::quoted_path(table));
    let resource = resource.map_or_else(|| "null".to_owned(), super::rows::literal);
    format!("{INSTALL}\nselect leasehold_fence.guard_table({target}, {resource});\n")
}

/// From now on `table` takes no write without a token that is at least the highest that
/// the resource has seen: the given name, or the table's. Needs [`install`] and the ownership
/// of the table. Says the resource's name.
///
/// # Errors
///
/// [`FenceError::Failed`] with what the database says.
pub async fn guard_table(
    client: &(impl GenericClient + Sync),
    table: &str,
    resource: Option<&str>,
) -> Result<String, FenceError> {
    let sql = "select leasehold_fence.guard_table($1::text::regclass, $2)";
    Ok(client.query_one(sql, &[&super::rows::quoted_path(table), &resource]).await?.get(0))
}

/// From now on each row of `table` takes no write without a token that is at least its own,
/// and deleted rows leave a mark. TRUNCATE is refused.
///
/// # Errors
///
/// [`FenceError::Failed`] with what the database says.
pub async fn guard_rows(
    client: &(impl GenericClient + Sync),
    table: &str,
    resource: Option<&str>,
) -> Result<String, FenceError> {
    let sql = "select leasehold_fence.guard_rows($1::text::regclass, $2)";
    Ok(client.query_one(sql, &[&super::rows::quoted_path(table), &resource]).await?.get(0))
}

/// Takes the guards off a table: the escape for its owner. The marks stay.
///
/// # Errors
///
/// [`FenceError::Failed`] with what the database says.
pub async fn unguard_table(
    client: &(impl GenericClient + Sync),
    table: &str,
) -> Result<(), FenceError> {
    let sql = "select leasehold_fence.unguard_table($1::text::regclass)";
    client.execute(sql, &[&super::rows::quoted_path(table)]).await?;
    Ok(())
}

/// Presents a token to the guards, until the transaction ends, and raises the resource's mark: it
/// waits here for transactions of other leases. What the transaction reads and writes
/// *after* this sees what they did. (A write that waits at the mark itself has looked at the
/// table before.)
///
/// The resource is what [`guard_table`] said. For a table with a fence for each row it is
/// [`present_row`].
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
pub async fn present(
    transaction: &Transaction<'_>,
    resource: &str,
    token: Token,
) -> Result<(), FenceError> {
    show(transaction, token).await?;
    advance(transaction, resource, token).await
}

/// Presents a token to the guards of a table with a fence for each row, until the transaction
/// ends, and raises the mark of one row. `key` is the primary key as a JSON object,
/// `{"hall": 1, "seat": 7}`; the resource is what [`guard_rows`] said.
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
pub async fn present_row(
    transaction: &Transaction<'_>,
    resource: &str,
    key: &str,
    token: Token,
) -> Result<(), FenceError> {
    show(transaction, token).await?;
    let sql = "select leasehold_fence.advance_row($1, $2::text::jsonb, $3)";
    transaction.execute(sql, &[&resource, &key, &signed(token)?]).await?;
    Ok(())
}

async fn show(transaction: &Transaction<'_>, token: Token) -> Result<(), FenceError> {
    let sql = "select set_config('leasehold.token', $1, true)";
    transaction.execute(sql, &[&signed(token)?.to_string()]).await?;
    Ok(())
}

/// Raises the mark of a resource: every older lease is shut out from now on (inside a
/// transaction: from its commit on, and until then it waits).
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
pub async fn advance(
    client: &(impl GenericClient + Sync),
    resource: &str,
    token: Token,
) -> Result<(), FenceError> {
    let sql = "select leasehold_fence.advance($1, $2)";
    client.execute(sql, &[&resource, &signed(token)?]).await?;
    Ok(())
}

impl From<tokio_postgres::Error> for FenceError {
    fn from(error: tokio_postgres::Error) -> Self {
        let Some(answer) = error.as_db_error() else {
            // No answer: whatever was sent may have been done.
            return Self::failed(KIND, Outcome::Unknown, error);
        };
        let detail = answer.detail().unwrap_or_default();
        let (tokens, resource) = detail.split_once("resource=").unwrap_or((detail, "a table"));
        let code = answer.code().code();
        match code {
            "LH001" => match tokens_of(tokens) {
                Some(stale) => rejected(KIND, resource, stale).into(),
                None => Self::failed(KIND, Outcome::NotApplied, error),
            },
            "LH002" => Self::NoToken { resource: resource.to_owned(), hint: HINT },
            _ => {
                let message = format!("{}: {}", answer.severity(), answer.message());
                let ends =
                    matches!(answer.parsed_severity(), Some(Severity::Fatal | Severity::Panic));
                let outcome = match ends || leaves_open(code) {
                    true => Outcome::Unknown,
                    false => Outcome::NotApplied,
                };
                let resource = KIND.to_owned();
                Self::Failed { resource, outcome, message, source: Some(error.into()) }
            }
        }
    }
}

/// SQLSTATEs that may strike in the middle of a commit: the connection, the end of the session,
/// `statement_completion_unknown`.
fn leaves_open(code: &str) -> bool {
    code.starts_with("08") || code.starts_with("57P0") || code == "40003"
}

const HINT: &str = "take the lock, then present its token in the transaction of the write";

/// `given=5 seen=6 `
fn tokens_of(detail: &str) -> Option<StaleToken> {
    let (given, seen) = detail.trim().strip_prefix("given=")?.split_once(" seen=")?;
    let token = |text: &str| text.parse().ok().map(Token::new);
    Some(StaleToken { given: token(given)?, seen: token(seen)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_strike_in_a_commit_leaves_it_open() {
        for code in ["08006", "08007", "57P01", "57P02", "57P03", "40003"] {
            assert!(leaves_open(code), "{code}");
        }
        for code in ["40001", "40P01", "23505", "57014", "55P03", "LH001"] {
            assert!(!leaves_open(code), "{code}");
        }
    }
}
