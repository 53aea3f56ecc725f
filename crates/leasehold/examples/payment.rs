//! Charged once, although the process dies between the charge and the receipt.
//!
//! The first process charges the card and dies before it can write that down. The second
//! takes over: it runs the same closure again, with the same key, and the provider, which
//! knows the key, does not charge twice. From then on the stored receipt is returned.
//!
//! ```console
//! $ cargo run --example payment
//! ```

use std::error::Error as StdError;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use leasehold::Token;
use leasehold::fence::sqlite::SqliteOutcomes;
use leasehold::fence::{Done, FenceError, Once};
use rusqlite::Connection;

const ORDER: &str = "order-42";

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let mut words = std::env::args().skip(1);
    if let (Some("dying"), Some(folder)) = (words.next().as_deref(), words.next()) {
        let died = pay(Path::new(&folder), true).await?;
        return Err(format!("it should have died, but: {died:?}").into());
    }
    let folder = tempfile::tempdir()?;
    provider(folder.path())?.execute_batch(
        "create table charge (idempotency_key text primary key, cents integer not null);
         create table request (idempotency_key text not null, token integer not null)",
    )?;

    let dying = Command::new(std::env::current_exe()?).arg("dying").arg(folder.path()).status()?;
    println!("the first process: {dying}");
    let second = pay(folder.path(), false).await?;
    println!("the second took over: {}", String::from_utf8_lossy(&second.outcome));
    let third = pay(folder.path(), false).await?;
    println!("the third got the stored receipt: {}", third.replayed);

    let count = |sql: &str| -> rusqlite::Result<i64> {
        provider(folder.path())?.query_row(sql, (), |row| row.get(0))
    };
    let requests = count("select count(*) from request")?;
    let charges = count("select count(*) from charge")?;
    println!("{requests} requests to the provider, {charges} charge");
    let as_it_should =
        !dying.success() && !second.replayed && third.replayed && third.outcome == second.outcome;
    match (as_it_should, requests, charges) {
        (true, 2, 1) => Ok(()),
        _ => Err("the card was not charged exactly once".into()),
    }
}

async fn pay(folder: &Path, dies: bool) -> Result<Done, FenceError> {
    let locks = leasehold::connect(format!("sqlite:{}/locks.db", folder.display())).await?;
    let receipts = SqliteOutcomes::open(folder.join("receipts.db"))?;
    let once = Once::new(locks, "charge", receipts);
    once.run(ORDER, async |token| {
        let receipt = charge(folder, ORDER, 1_999, token)?;
        if dies {
            // Nothing is cleaned up: as a power cut would do it.
            std::process::abort();
        }
        Ok(receipt.into_bytes())
    })
    .await
}

/// Stands for a payment provider that takes an idempotency key, as they do.
fn charge(folder: &Path, key: &str, cents: i64, token: Token) -> Result<String, FenceError> {
    let provider = provider(folder)?;
    let number = i64::try_from(token.get()).unwrap_or(i64::MAX);
    provider.execute("insert into request values (?1, ?2)", (key, number))?;
    provider.execute("insert or ignore into charge values (?1, ?2)", (key, cents))?;
    Ok(format!("receipt for {key}, {cents} cents"))
}

fn provider(folder: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(folder.join("provider.db"))?;
    connection.busy_timeout(Duration::from_secs(60))?;
    Ok(connection)
}
