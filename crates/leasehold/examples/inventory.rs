//! Inventory that never oversells, with workers that are paused at the worst moments.
//!
//! Four processes sell the same item. Each reads the stock under a lock, thinks, and writes
//! what it read less one: a lost update waiting to happen. Meanwhile they are stopped
//! (SIGSTOP) for longer than their leases last. The fenced table sells each piece once; an
//! unfenced copy beside it, sold by the same code without tokens, may not.
//!
//! ```console
//! $ cargo run --example inventory
//! ```

use std::error::Error as StdError;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold::fence::FenceError;
use leasehold::fence::sqlite::FencedSqlite;
use leasehold::{ErrorKind, Lease, Locks};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, kill_process};

const WORKERS: usize = 4;
const PIECES: i64 = 40;
const TTL: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(700);
/// The pauses are over after so long, whatever was sold.
const STORM: Duration = Duration::from_secs(8);

const TABLES: &str = "
    create table stock (item text primary key, left integer not null);
    create table sale (worker integer, left_after integer not null);
    create table unfenced_stock (item text primary key, left integer not null);
    create table unfenced_sale (worker integer, left_after integer not null);
";

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match (words.next().as_deref(), words.next()) {
        (Some("worker"), Some(folder)) => sell(Path::new(&folder)).await,
        _ => run(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// The shop: fills the shelf, starts the workers, pauses them, counts.
fn run() -> Result<(), Box<dyn StdError>> {
    let folder = tempfile::tempdir()?;
    let shop = open(folder.path())?;
    shop.connection().execute_batch(TABLES)?;
    for table in ["stock", "unfenced_stock"] {
        let fill = format!("insert into {table} values ('item42', {PIECES})");
        shop.connection().execute(&fill, ())?;
    }
    // The stock and what was sold are one resource: they change together.
    shop.guard_table("stock", "item42")?;
    shop.guard_table("sale", "item42")?;

    let mut workers = Vec::new();
    for _ in 0..WORKERS {
        let mut worker = Command::new(std::env::current_exe()?);
        workers.push(Worker(worker.arg("worker").arg(folder.path()).spawn()?));
    }
    pause_at_random(&mut workers)?;
    for worker in &mut workers {
        let status = worker.0.wait()?;
        if !status.success() {
            return Err(format!("a worker failed: {status}").into());
        }
    }
    let count = |sql: &str| shop.connection().query_row(sql, (), |row| row.get::<_, i64>(0));
    let (sold, left) = (count("select count(*) from sale")?, count("select left from stock")?);
    println!("fenced:   {PIECES} pieces, {sold} sold, {left} left");
    let (free_sold, free_left) =
        (count("select count(*) from unfenced_sale")?, count("select left from unfenced_stock")?);
    println!("unfenced: {PIECES} pieces, {free_sold} sold, {free_left} left");
    match (sold, left) {
        (PIECES, 0) => Ok(()),
        _ => Err("the fenced stock does not add up".into()),
    }
}

fn pause_at_random(workers: &mut [Worker]) -> Result<(), Box<dyn StdError>> {
    let until = Instant::now() + STORM;
    while Instant::now() < until {
        let worker = &mut workers[fastrand::usize(..WORKERS)];
        if worker.0.try_wait()?.is_none() {
            let pid = Pid::from_child(&worker.0);
            kill_process(pid, Signal::STOP)?;
            std::thread::sleep(PAUSE);
            kill_process(pid, Signal::CONT)?;
        } else if workers.iter_mut().all(|worker| matches!(worker.0.try_wait(), Ok(Some(_)))) {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

/// A worker: sells until nothing is left. That its lease was lost, its token stale, or
/// somebody in its way is its daily life and no failure: it begins again.
async fn sell(folder: &Path) -> Result<(), Box<dyn StdError>> {
    let mut shop = open(folder)?;
    let locks = loop {
        match leasehold::connect(format!("sqlite:{}/locks.db", folder.display())).await {
            Ok(locks) => break locks,
            Err(error) => passing(error.into())?,
        }
    };
    loop {
        match sell_one(&mut shop, &locks).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => passing(error)?,
        }
    }
}

/// Sells one piece; `false` when none is left.
async fn sell_one(shop: &mut FencedSqlite, locks: &Locks) -> Result<bool, FenceError> {
    let lock = locks.lock("inventory:item42").ttl(TTL).wait(Duration::from_secs(60));
    let lease = lock.acquire().await?;
    let sold = sell_under(shop, &lease).await;
    // The lease may be gone: then the write was refused, or was in time.
    let _ = lease.release().await;
    sold
}

async fn sell_under(shop: &mut FencedSqlite, lease: &Lease) -> Result<bool, FenceError> {
    let token = lease.token();
    // Before reading: an older holder that still thinks is shut out from here on.
    shop.advance("item42", token)?;
    let read = |table: &str| {
        let sql = format!("select left from {table}");
        shop.connection().query_row(&sql, (), |row| row.get::<_, i64>(0))
    };
    let (left, unfenced_left) = (read("stock")?, read("unfenced_stock")?);
    if left == 0 {
        return Ok(false);
    }
    // Time for the customer to pay, and for us to be stopped.
    tokio::time::sleep(Duration::from_millis(fastrand::u64(1..20))).await;
    let worker = std::process::id();
    if unfenced_left > 0 {
        let connection = shop.connection();
        connection
            .execute("insert into unfenced_sale values (?1, ?2)", (worker, unfenced_left - 1))?;
        connection.execute("update unfenced_stock set left = ?1", [unfenced_left - 1])?;
    }
    shop.transaction(token, |transaction| {
        transaction.execute("update stock set left = ?1", [left - 1])?;
        transaction.execute("insert into sale values (?1, ?2)", (worker, left - 1))?;
        Ok(true)
    })
}

/// Whether to try again.
fn passing(error: FenceError) -> Result<(), FenceError> {
    match &error {
        FenceError::Stale(stale) => eprintln!("worker {}: {stale}", std::process::id()),
        // Somebody is stopped while it has the database: it will go on.
        FenceError::Failed { .. } => {}
        FenceError::Lock(lock) => match lock.kind() {
            ErrorKind::Invalid | ErrorKind::Refused | ErrorKind::Unusable => return Err(error),
            _ => {}
        },
        _ => return Err(error),
    }
    std::thread::sleep(Duration::from_millis(10));
    Ok(())
}

fn open(folder: &Path) -> Result<FencedSqlite, FenceError> {
    let connection = Connection::open(folder.join("shop.db"))?;
    connection.busy_timeout(Duration::from_secs(60))?;
    FencedSqlite::new(connection)
}

/// A process; killed at the latest when the example ends.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
