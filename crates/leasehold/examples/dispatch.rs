//! A delivery gets one driver, although a fail-over loses the lock.
//!
//! One dispatcher holds the lock. The store fails over to a replica that never heard of it, so
//! that a second dispatcher gets the lock as well: two holders at once, as Redis documents it.
//! The database decides: the assignment is a state transition under the token, and the
//! second holder's token is higher.
//!
//! ```console
//! $ cargo run --example dispatch
//! ```

use std::error::Error as StdError;

use leasehold::backend::memory::MemoryStore;
use leasehold::clock::Clock;
use leasehold::fence::sqlite::{Rows, claim, update};
use leasehold::fence::{FenceError, Moved};
use leasehold::{Lease, LeaseState, Locks};
use rusqlite::Connection;

const LOCK: &str = "delivery:7";

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let database = Connection::open_in_memory()?;
    database.execute_batch(
        "create table delivery (id integer primary key, state text not null, driver text,
                                fence_token integer not null default 0);
         insert into delivery (id, state) values (7, 'NEW')",
    )?;
    // A store, and the replica that is promoted without the last writes.
    let (first, promoted) = (MemoryStore::new(Clock::boot()), MemoryStore::new(Clock::boot()));
    let first = Locks::on(first).await?.lock(LOCK).acquire().await?;
    let second = Locks::on(promoted).await?.lock(LOCK).acquire().await?;
    let both = [&first, &second].map(|lease| lease.state() == LeaseState::Held);
    println!("two holders at once: {both:?}, tokens {} and {}", first.token(), second.token());

    let by_second = assign(&database, &second, "Ada");
    println!("the second assigns Ada: {by_second:?}");
    let by_first = assign(&database, &first, "Bob");
    match &by_first {
        Err(FenceError::Stale(stale)) => println!("the first assigns Bob: {stale}"),
        other => println!("the first assigns Bob: {other:?}"),
    }
    let driver: String =
        database.query_row("select driver from delivery where id = 7", (), |row| row.get(0))?;
    println!("the driver is {driver}");
    let refused = matches!(by_first, Err(FenceError::Stale(_)));
    match (both, by_second.is_ok(), refused, driver.as_str()) {
        ([true, true], true, true, "Ada") => Ok(()),
        _ => Err("the delivery did not get exactly one driver".into()),
    }
}

fn assign(database: &Connection, lease: &Lease, driver: &str) -> Result<(), FenceError> {
    let (deliveries, token) = (Rows::new("delivery", "id"), lease.token());
    let transaction = database.unchecked_transaction()?;
    if claim(&transaction, &deliveries, &7, token, "NEW", "ASSIGNED")? == Moved::Now {
        update(&transaction, &deliveries, &7, token, "driver = ?3", &[&driver])?;
    }
    Ok(transaction.commit()?)
}
