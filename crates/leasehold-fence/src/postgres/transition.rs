//! State transitions as conditional updates.

use tokio_postgres::GenericClient;
use tokio_postgres::types::ToSql;

use super::KIND;
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
///
/// # Cancel safety
///
/// Dropped, it may or may not happen; the same call with the same token tells.
pub async fn claim(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: &(dyn ToSql + Sync),
    token: Token,
    from: &str,
    to: &str,
) -> Result<Moved, FenceError> {
    step(client, rows, key, token, (from, to), include_str!("../rows/claim.sql")).await
}

/// Moves a row out of a state that *the same lease* claimed (`PROCESSING` → `DONE`).
/// What belongs to it is done in the same transaction, if this is [`Moved::Now`], and so
/// exactly once.
///
/// # Errors
///
/// [`FenceError::Stale`], [`FenceError::WrongState`], [`FenceError::NotFound`].
///
/// # Cancel safety
///
/// Dropped, it may or may not happen; the same call with the same token tells.
pub async fn finish(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: &(dyn ToSql + Sync),
    token: Token,
    from: &str,
    to: &str,
) -> Result<Moved, FenceError> {
    step(client, rows, key, token, (from, to), include_str!("../rows/finish.sql")).await
}

async fn step(
    client: &(impl GenericClient + Sync),
    rows: &Rows,
    key: &(dyn ToSql + Sync),
    token: Token,
    (from, to): (&str, &str),
    sql: &str,
) -> Result<Moved, FenceError> {
    let number = signed(token)?;
    if client.execute(&rows.fill(sql), &[key, &number, &from, &to]).await? > 0 {
        return Ok(Moved::Now);
    }
    let look = rows.fill(include_str!("../rows/standing.sql"));
    let row = client.query_opt(&look, &[key]).await?;
    let row = row.map(|row| (row.get(0), row.get(1)));
    rows.not_moved(KIND, token, (from, to), row)
}
