//! State transitions as conditional updates.

use rusqlite::{Connection, OptionalExtension, ToSql};

use super::{KIND, numbered};
use crate::error::{FenceError, signed};
use crate::moved::Moved;
use crate::rows::Rows;
use crate::token::Token;

/// Moves a row from one state into the next in the name of a lease (`NEW` →
/// `PROCESSING`), or takes it over from an older lease that got no further.
///
/// # Errors
///
/// [`FenceError::Stale`], [`FenceError::WrongState`], [`FenceError::NotFound`].
pub fn claim(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
    from: &str,
    to: &str,
) -> Result<Moved, FenceError> {
    step(connection, rows, key, token, (from, to), include_str!("../rows/claim.sql"))
}

/// Moves a row out of a state that *the same lease* claimed (`PROCESSING` → `DONE`).
/// What belongs to it is done in the same transaction, if this is [`Moved::Now`], and so
/// exactly once.
///
/// # Errors
///
/// [`FenceError::Stale`], [`FenceError::WrongState`], [`FenceError::NotFound`].
pub fn finish(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
    from: &str,
    to: &str,
) -> Result<Moved, FenceError> {
    step(connection, rows, key, token, (from, to), include_str!("../rows/finish.sql"))
}

fn step(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
    (from, to): (&str, &str),
    sql: &str,
) -> Result<Moved, FenceError> {
    let sql = rows.fill(&numbered(sql));
    let number = signed(token)?;
    let parameters: [&dyn ToSql; 4] = [key, &number, &from, &to];
    if connection.prepare_cached(&sql)?.execute(parameters)? > 0 {
        return Ok(Moved::Now);
    }
    let look = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let sql = rows.fill(&numbered(include_str!("../rows/standing.sql")));
    let row = connection.query_row(&sql, [key], look).optional()?;
    rows.not_moved(KIND, token, (from, to), row)
}
