//! SQLite tables that take no late writes.
//!
//! * [`FencedSqlite`]: a connection that presents a token. With [`FencedSqlite::guard_table`]
//!   a whole table takes no write without one, from any program.
//! * [`Rows`] with [`update`], [`put`], [`delete`], [`advance_row`]: conditional writes of single
//!   rows, on any connection.
//! * [`claim`] and [`finish`]: state transitions.
//! * [`SqliteOutcomes`]: outcomes by key, for `leasehold::fence::Once`.
//!
//! Every call blocks while it works on the file. Set a `busy_timeout` on the connection: a
//! database that is busy is an error otherwise.

use rusqlite::{Connection, ErrorCode};

use super::error::FenceError;
use crate::outcome::Outcome;

pub use super::rows::Rows;
pub use connection::FencedSqlite;
pub use outcomes::SqliteOutcomes;
pub use row::{advance_row, delete, put, update};
pub use transition::{claim, finish};

mod connection;
mod key;
mod outcomes;
mod row;
mod transition;

/// The kind of resource, in metrics and events.
const KIND: &str = "sqlite";

/// Creates the table of marks, if it is not there. [`FencedSqlite::new`] does it too.
///
/// # Errors
///
/// [`FenceError::Failed`] when the database cannot be written.
pub fn install(connection: &Connection) -> Result<(), FenceError> {
    Ok(connection.execute_batch(include_str!("sqlite/install.sql"))?)
}

impl From<rusqlite::Error> for FenceError {
    fn from(error: rusqlite::Error) -> Self {
        // Only what strikes in the middle of a commit leaves it open whether it was done.
        let outcome = match error.sqlite_error_code() {
            Some(ErrorCode::SystemIoFailure) => Outcome::Unknown,
            _ => Outcome::NotApplied,
        };
        Self::failed(KIND, outcome, error)
    }
}

/// All of it or nothing, inside a transaction or outside of one.
fn whole<T>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, FenceError>,
) -> Result<T, FenceError> {
    let alone = connection.is_autocommit();
    connection.execute_batch("savepoint leasehold")?;
    let done = work().and_then(|done| {
        connection.execute_batch("release leasehold")?;
        Ok(done)
    });
    // Also where the release was refused (a reader keeps the file busy): left open, the
    // savepoint would be a transaction that nobody knows of. Where it is the whole transaction,
    // its release would be refused once more.
    if done.is_err() && !connection.is_autocommit() {
        connection.execute_batch(match alone {
            true => "rollback",
            false => "rollback to leasehold; release leasehold",
        })?;
    }
    done
}

/// SQLite numbers its parameters with a question mark.
fn numbered(sql: &str) -> String {
    sql.replace('$', "?")
}
