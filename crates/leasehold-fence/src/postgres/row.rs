//! Conditional writes of single rows.

use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::KIND;
use crate::error::{FenceError, signed};
use crate::rows::{ATTEMPTS, Rows};
use crate::token::Token;

/// A value of a row, as the driver takes it.
type Value<'a> = &'a (dyn ToSql + Sync);

/// Changes a row, if no newer lease has: `update … set ASSIGNMENTS where key = … and
/// fence_token <= …`. In the assignments `$3`, `$4`, … are the parameters.
///
/// # Errors
///
/// [`FenceError::Stale`], or [`FenceError::NotFound`] when there is no such row.
///
/// # Cancel safety
///
/// Dropped, the row may or may not be changed.
pub async fn update(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: Value<'_>,
    token: Token,
    assignments: &str,
    values: &[Value<'_>],
) -> Result<(), FenceError> {
    let sql = rows.fill(include_str!("../rows/update.sql"));
    let sql = sql.replace("{assignments}", assignments);
    let number = signed(token)?;
    let mut parameters: Vec<Value<'_>> = vec![key, &number];
    parameters.extend(values);
    for _ in 0..ATTEMPTS {
        if client.execute(&sql, &parameters).await? > 0 {
            return Ok(());
        }
        let seen = look(client, rows, key).await?.ok_or_else(|| rows.not_found())?;
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
///
/// # Cancel safety
///
/// Dropped, the row may or may not be written.
pub async fn put(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: Value<'_>,
    token: Token,
    columns: &[(&str, Value<'_>)],
) -> Result<(), FenceError> {
    let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
    let sql = rows.put(include_str!("put.sql"), &names, '$');
    let number = signed(token)?;
    let mut parameters: Vec<Value<'_>> = vec![key, &number];
    parameters.extend(columns.iter().map(|(_, value)| *value));
    for _ in 0..ATTEMPTS {
        if client.execute(&sql, &parameters).await? > 0 {
            return Ok(());
        }
        let seen = look(client, rows, key).await?;
        if let Some(refused) = seen.and_then(|seen| rows.refused(KIND, token, seen)) {
            return Err(refused);
        }
    }
    Err(rows.not_written())
}

/// Deletes a row, if no newer lease has written it; says whether it was there. Its token stays
/// behind as a tombstone among the marks. Needs [`install`](super::install).
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
///
/// # Cancel safety
///
/// Dropped, the row may or may not be deleted.
pub async fn delete(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: Value<'_>,
    token: Token,
) -> Result<bool, FenceError> {
    let number = signed(token)?;
    // Even as statements of their own: once the mark is raised no older lease can put the
    // row back.
    client.query(&rows.fill(include_str!("tombstone.sql")), &[key, &number]).await?;
    let sql = rows.fill(include_str!("delete.sql"));
    if client.execute(&sql, &[key, &number]).await? > 0 {
        return Ok(true);
    }
    let seen = look(client, rows, key).await?;
    match seen.and_then(|seen| rows.refused(KIND, token, seen)) {
        Some(refused) => Err(refused),
        None => Ok(false),
    }
}

/// Raises the token of a row without changing anything else: every older lease is shut out of it
/// from now on, also if there is no such row. Before the new holder reads. Needs
/// [`install`](super::install).
///
/// # Errors
///
/// [`FenceError::Stale`] when a newer lease has been here.
///
/// # Cancel safety
///
/// Dropped, the row may or may not be advanced.
pub async fn advance_row(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: Value<'_>,
    token: Token,
) -> Result<(), FenceError> {
    let number = signed(token)?;
    client.query(&rows.fill(include_str!("tombstone.sql")), &[key, &number]).await?;
    client.execute(&rows.fill(include_str!("../rows/advance.sql")), &[key, &number]).await?;
    let seen = look(client, rows, key).await?;
    seen.and_then(|seen| rows.refused(KIND, token, seen)).map_or(Ok(()), Err)
}

async fn look(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: Value<'_>,
) -> Result<Option<i64>, FenceError> {
    let sql = rows.fill(include_str!("../rows/look.sql"));
    Ok(client.query_opt(&sql, &[key]).await?.map(|row| row.get(0)))
}
