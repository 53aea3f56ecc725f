//! Inventory that never oversells, with workers that are paused at the worst moments.
//!
//! Four processes sell the same item. Each reads the stock under a lock, thinks, and writes
//! what it read less one: a lost update waiting to happen. One is stopped (SIGSTOP) right after
//! it has read, and wakes up when another has sold; then all of them are stopped at random, for
//! longer than their leases last. The fenced table sells each piece once and turns the late
//! ones away; an unfenced copy beside it, sold by the same code without tokens, does not.
//!
//! ```console
//! $ cargo run --example inventory
//! ```

use std::error::Error as StdError;
use std::io;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

use leasehold::fence::FenceError;
use leasehold::fence::sqlite::FencedSqlite;
use leasehold::{ErrorKind, Lease, Locks};
use rusqlite::Connection;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

const WORKERS: usize = 4;
const PIECES: i64 = 40;
const TTL: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(700);
/// The pauses are over after so long, whatever was sold.
const STORM: Duration = Duration::from_secs(8);
/// How long a worker or the shop keeps trying on a busy machine.
const PATIENCE: Duration = Duration::from_secs(300);
/// As long as this file is there, the first worker stops after it has read.
const STOPPING: &str = "stopping";

const TABLES: &str = "
    create table stock (item text primary key, left integer not null);
    create table sale (worker integer, left_after integer not null);
    create table unfenced_stock (item text primary key, left integer not null);
    create table unfenced_sale (worker integer, left_after integer not null);
    create table rejection (worker integer);
";

#[tokio::main]
async fn main() -> ExitCode {
    let mut words = std::env::args().skip(1);
    let done = match (words.next().as_deref(), words.next()) {
        (Some("worker"), Some(folder)) => sell(Path::new(&folder), false).await,
        (Some("stopping"), Some(folder)) => sell(Path::new(&folder), true).await,
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

    std::fs::write(folder.path().join(STOPPING), "")?;
    let mut workers = vec![Worker::start("stopping", folder.path())?];
    until_stopped(&workers[0])?;
    for _ in 1..WORKERS {
        workers.push(Worker::start("worker", folder.path())?);
    }
    wake_when_another_has_sold(&workers[0], &shop, folder.path())?;
    pause_at_random(&mut workers)?;
    for worker in &mut workers {
        let status = worker.0.wait()?;
        if !status.success() {
            return Err(format!("a worker failed: {status}").into());
        }
    }
    let count = |sql: &str| count(&shop, sql);
    let (sold, left) = (count("select count(*) from sale")?, count("select left from stock")?);
    println!("fenced:   {PIECES} pieces, {sold} sold, {left} left");
    let (free_sold, free_left) =
        (count("select count(*) from unfenced_sale")?, count("select left from unfenced_stock")?);
    println!("unfenced: {PIECES} pieces, {free_sold} sold, {free_left} left");
    let rejected = count("select count(*) from rejection")?;
    println!("late writes that were turned away: {rejected}");
    match (sold, left, rejected) {
        (PIECES, 0, 1..) => Ok(()),
        (PIECES, 0, _) => Err("nobody was late, so this has shown nothing".into()),
        _ => Err("the fenced stock does not add up".into()),
    }
}

fn count(shop: &FencedSqlite, sql: &str) -> rusqlite::Result<i64> {
    shop.connection().query_row(sql, (), |row| row.get(0))
}

/// The first worker has read and stands still. Once another has sold, it goes on to write.
fn wake_when_another_has_sold(
    worker: &Worker,
    shop: &FencedSqlite,
    folder: &Path,
) -> Result<(), Box<dyn StdError>> {
    let sold = || count(shop, "select count(*) from sale").unwrap_or(0);
    loop {
        let (before, began) = (sold(), Instant::now());
        // Not for ever: it may be stopped with the store's file locked, and nobody gets on.
        while sold() == before && began.elapsed() < PAUSE * 10 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let late = sold() > before;
        if late {
            std::fs::remove_file(folder.join(STOPPING))?;
        }
        kill_process(Pid::from_child(&worker.0), Signal::CONT)?;
        if late {
            return Ok(());
        }
        until_stopped(worker)?;
    }
}

fn until_stopped(worker: &Worker) -> Result<(), Box<dyn StdError>> {
    let (pid, began) = (Pid::from_child(&worker.0), Instant::now());
    while began.elapsed() < PATIENCE {
        match waitpid(Some(pid), WaitOptions::UNTRACED | WaitOptions::NOHANG)? {
            Some((_, status)) if status.stopped() => return Ok(()),
            Some((_, status)) => return Err(format!("the first worker ended: {status:?}").into()),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    }
    Err("the first worker does not get to read".into())
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
async fn sell(folder: &Path, stops: bool) -> Result<(), Box<dyn StdError>> {
    let began = Instant::now();
    loop {
        match sell_all(folder, stops).await {
            Ok(()) => return Ok(()),
            Err(error) if began.elapsed() > PATIENCE => return Err(error.into()),
            Err(error) => passing(error)?,
        }
    }
}

async fn sell_all(folder: &Path, stops: bool) -> Result<(), FenceError> {
    let mut shop = open(folder)?;
    let locks = leasehold::connect(format!("sqlite:{}/locks.db", folder.display())).await?;
    let has_read = || match stops && folder.join(STOPPING).exists() {
        true => stand_still(),
        false => Ok(()),
    };
    loop {
        match sell_one(&mut shop, &locks, has_read).await {
            Ok(true) => {}
            Ok(false) => return Ok(()),
            Err(error) => {
                if error.stale().is_some() {
                    let late = "insert into rejection values (?1)";
                    shop.connection().execute(late, [std::process::id()])?;
                }
                return Err(error);
            }
        }
    }
}

/// What the operating system, a debugger or a hypervisor may do to any process at any time.
fn stand_still() -> io::Result<()> {
    Ok(kill_process(rustix::process::getpid(), Signal::STOP)?)
}

/// Sells one piece; `false` when none is left.
async fn sell_one(
    shop: &mut FencedSqlite,
    locks: &Locks,
    has_read: impl Fn() -> io::Result<()>,
) -> Result<bool, FenceError> {
    let lock = locks.lock("inventory:item42").ttl(TTL).wait(Duration::from_secs(60));
    let lease = lock.acquire().await?;
    let sold = sell_under(shop, &lease, has_read).await;
    // The lease may be gone: then the write was refused, or was in time.
    let _ = lease.release().await;
    sold
}

async fn sell_under(
    shop: &mut FencedSqlite,
    lease: &Lease,
    has_read: impl Fn() -> io::Result<()>,
) -> Result<bool, FenceError> {
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
    has_read().map_err(|error| FenceError::Invalid(format!("cannot stand still: {error}")))?;
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
        FenceError::Lock(lock) => match lock.get::<leasehold::Error>().map(|error| error.kind()) {
            Some(ErrorKind::Invalid | ErrorKind::Refused) => return Err(error),
            Some(ErrorKind::Unusable | ErrorKind::Gone) => return Err(error),
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

impl Worker {
    fn start(role: &str, folder: &Path) -> io::Result<Self> {
        let mut worker = Command::new(std::env::current_exe()?);
        Ok(Self(worker.arg(role).arg(folder).spawn()?))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
