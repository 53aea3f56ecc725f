//! Conditional writes of single rows.

use rusqlite::{Connection, OptionalExtension, ToSql};

use super::{KIND, key, numbered, whole};
use crate::error::{FenceError, signed};
use crate::rows::{ATTEMPTS, Rows};
use crate::token::Token;

const TOMBSTONE: &str = include_str!("tombstone.sql");

/// Changes a row, if no newer lease has: `update … set ASSIGNMENTS where key = … and
/// fence_token <= …`. In the assignments `?3`, `?4`, … are the parameters.
///
/// ```
/// use leasehold_fence::Token;
/// use leasehold_fence::sqlite::{Rows, install, update};
///
/// let db = rusqlite::Connection::open_in_memory()?;
/// install(&db)?;
/// db.execute_batch(
///     "create table stock (item text primary key, left integer, fence_token integer not null);
///      insert into stock values ('item42', 10, 34)",
/// )?;
/// let stock = Rows::new("stock", "item");
/// update(&db, &stock, &"item42", Token::new(34), "left = left - ?3", &[&1])?;
/// let late = update(&db, &stock, &"item42", Token::new(33), "left = left - ?3", &[&1]);
/// assert!(late.unwrap_err().stale().is_some());
/// # Ok::<(), leasehold_fence::FenceError>(())
/// ```
///
/// # Errors
///
/// [`FenceError::Stale`], or [`FenceError::NotFound`] when there is no such row.
pub fn update(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
    assignments: &str,
    values: &[&dyn ToSql],
) -> Result<(), FenceError> {
    let number = signed(token)?;
    let mut parameters: Vec<&dyn ToSql> = vec![key, &number];
    parameters.extend(values);
    let sql = rows.fill(&numbered(include_str!("../rows/update.sql")));
    let sql = sql.replace("{assignments}", assignments);
    for _ in 0..ATTEMPTS {
        if connection.prepare_cached(&sql)?.execute(parameters.as_slice())? > 0 {
            return Ok(());
        }
        let look = rows.fill(&numbered(include_str!("../rows/look.sql")));
        let seen = connection.query_row(&look, [key], |row| row.get(0)).optional()?;
        let seen = seen.ok_or_else(|| rows.not_found())?;
        if let Some(refused) = rows.refused(KIND, token, seen) {
            return Err(refused);
        }
        // It came between our two statements: write again.
    }
    Err(rows.not_written())
}

/// Inserts a row, or changes it if no newer lease has. A row that a newer lease deleted with
/// [`delete`] stays deleted. Needs [`install`](super::install).
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
pub fn put(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
    columns: &[(&str, &dyn ToSql)],
) -> Result<(), FenceError> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let sql = rows.put(&numbered(include_str!("put.sql")), &names, '?');
    let sql = sql.replace("{mark}", &format!("?{}", columns.len() + 3));
    let (number, mark) = (signed(token)?, key::mark(connection, rows, key)?);
    let mut parameters: Vec<&dyn ToSql> = vec![key, &number];
    parameters.extend(columns.iter().map(|(_, value)| *value));
    parameters.push(&mark);
    for _ in 0..ATTEMPTS {
        if connection.prepare_cached(&sql)?.execute(parameters.as_slice())? > 0 {
            return Ok(());
        }
        if let Some(refused) = refused(connection, rows, (key, &mark), token)? {
            return Err(refused);
        }
    }
    Err(rows.not_written())
}

/// Deletes a row, if no newer lease has written it; says whether it was there. Its token stays
/// behind as a tombstone in the table of marks. Needs [`install`](super::install).
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
pub fn delete(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
) -> Result<bool, FenceError> {
    let number = signed(token)?;
    whole(connection, || {
        let sql = |template| rows.fill(&numbered(template));
        let mark = key::mark(connection, rows, key)?;
        // The mark first: this takes the database's write lock, so that nothing comes
        // between it and the rest.
        let marked = connection.execute(TOMBSTONE, (&mark, number))?;
        let deleted = connection.execute(&sql(include_str!("delete.sql")), (key, number))?;
        match refused(connection, rows, (key, &mark), token)? {
            Some(refused) => Err(refused),
            None => Ok(marked > 0 && deleted > 0),
        }
    })
}

/// Raises the token of a row without changing anything else: every older lease is shut out of it
/// from now on, also if there is no such row. Before the new holder reads. Needs
/// [`install`](super::install).
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
pub fn advance_row(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
    token: Token,
) -> Result<(), FenceError> {
    let number = signed(token)?;
    whole(connection, || {
        let mark = key::mark(connection, rows, key)?;
        connection.execute(TOMBSTONE, (&mark, number))?;
        let advance = rows.fill(&numbered(include_str!("../rows/advance.sql")));
        connection.execute(&advance, (key, number))?;
        refused(connection, rows, (key, &mark), token)?.map_or(Ok(()), Err)
    })
}

fn refused(
    connection: &Connection,
    rows: &Rows,
    (key, mark): (&dyn ToSql, &str),
    token: Token,
) -> Result<Option<FenceError>, FenceError> {
    let look = rows.fill(&numbered(include_str!("seen.sql")));
    let seen: Option<i64> = connection.query_row(&look, (key, mark), |row| row.get(0))?;
    Ok(seen.and_then(|seen| rows.refused(KIND, token, seen)))
}
