//! Locks inside a transaction of the caller's own: released by its commit or rollback.

use tokio_postgres::Transaction;
use tokio_postgres::types::{ToSql, Type};

use super::STORE;
use super::error::explain;
use super::key::Key;
use crate::error::{Error, Operation, Result};
use crate::name::Name;

/// Takes the lock until the transaction ends, by commit or rollback; waits for it if need be,
/// for as long as the transaction's `lock_timeout` says.
///
/// It excludes leases of the same name in session mode (`?mode=session`), and others'
/// `pg_advisory_lock` on the same key: `pg:12345` and `pg:1,42` are those very keys, any
/// other name is
///
/// ```sql
/// select pg_advisory_xact_lock(
///   ('x' || encode(substring(sha256(convert_to('nightly-report', 'UTF8')) for 8), 'hex'))::bit(64)::bigint);
/// ```
///
/// It needs READ COMMITTED, the usual isolation. With REPEATABLE READ or SERIALIZABLE (also by
/// `default_transaction_isolation`) a transaction sees the database as it was when its first
/// statement began, which is before the wait: it does not see what the holder before it wrote,
/// and to update that fails with `could not serialize access`. Such a transaction has to be begun
/// under a lease of session mode instead.
///
/// The session's `lock_timeout`, `statement_timeout` and `transaction_timeout` end a wait;
/// `idle_in_transaction_session_timeout` ends a transaction that pauses, and its lock.
///
/// There is no token: what this transaction writes is written only if it commits, and it
/// cannot commit without its session, which carries the lock. What it does *outside* of
/// the database is not guarded. Works through a transaction pooler.
///
/// ```no_run
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// use leasehold::backend::postgres::acquire_in_transaction;
///
/// let transaction = client.transaction().await?;
/// acquire_in_transaction(&transaction, "invoice-numbers").await?;
/// transaction.execute("update counters set last = last + 1", &[]).await?;
/// transaction.commit().await?;
/// # Ok(()) }
/// ```
///
/// # Errors
///
/// `Invalid` for a name that no lock can have, and for one that begins with `pg:` and is no key;
/// otherwise as the server says, and the transaction cannot go on: roll it back.
///
/// # Cancel safety
///
/// Dropping the future does not end the statement: the transaction may get the lock later.
/// Roll it back.
pub async fn acquire_in_transaction(
    transaction: &Transaction<'_>,
    name: impl AsRef<str>,
) -> Result<()> {
    ask(transaction, "pg_advisory_xact_lock", Name::new(name)?).await.map(drop)
}

/// Takes the lock until the transaction ends, if it is free: whether it was.
///
/// As [`acquire_in_transaction`], without waiting.
///
/// # Errors
///
/// As there; that another has it is none.
///
/// # Cancel safety
///
/// As there.
pub async fn try_acquire_in_transaction(
    transaction: &Transaction<'_>,
    name: impl AsRef<str>,
) -> Result<bool> {
    let answer = ask(transaction, "pg_try_advisory_xact_lock", Name::new(name)?).await?;
    Ok(answer.as_deref() == Some("true"))
}

/// What this function of the server says of the lock's key.
async fn ask(transaction: &Transaction<'_>, function: &str, name: Name) -> Result<Option<String>> {
    let about = |error: Error| error.on_store(STORE).during(Operation::Acquire, Some(&name));
    let key = Key::of(&name).map_err(about)?;
    let (places, parameters): (_, Vec<(&(dyn ToSql + Sync), Type)>) = match &key {
        Key::One(key) => ("$1", vec![(key, Type::INT8)]),
        Key::Two(first, second) => ("$1, $2", vec![(first, Type::INT4), (second, Type::INT4)]),
    };
    let sql = format!("select {function}({places})::text");
    let asked = transaction.query_typed(&sql, &parameters).await;
    let rows = asked.map_err(|error| about(explain(error, "the server")))?;
    Ok(rows.first().and_then(|row| row.get(0)))
}
