//! Many workers, killed at random: every row goes NEW → PROCESSING → DONE exactly once.
//!
//! `FENCING_WORKERS` and `FENCING_ROWS` make it longer; the full size is 64 and 10000.

use std::fmt::Display;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::fence::postgres::{Rows, claim, finish};
use leasehold::fence::{FenceError, Moved};
use leasehold::{Locks, Token};
use leasehold_faults::servers::Postgres;
use tokio_postgres::{Client, NoTls};

use crate::NEW;

const DATABASE: &str = "LEASEHOLD_TEST_DATABASE";
const LOCKS: &str = "LEASEHOLD_TEST_LOCKS";
/// How long it may take on a busy machine: three minutes, and a tenth of a
/// second for each row.
const PATIENCE: Duration = Duration::from_secs(180);

/// Not a test by itself: the process that the other test starts and kills.
#[tokio::test]
async fn worker() {
    let (Ok(database), Ok(locks)) = (std::env::var(DATABASE), std::env::var(LOCKS)) else { return };
    let mut client = connected(&database).await;
    let locks = patiently(async || leasehold::connect(&locks).await).await;
    // On a busy machine anything may fail: it is done again. How long, the other test says.
    loop {
        match step(&mut client, &locks).await {
            Ok(true) => {}
            Ok(false) => return,
            Err(FenceError::Stale(_) | FenceError::WrongState { .. }) => {}
            Err(error) => {
                eprintln!("{error}");
                if client.is_closed() {
                    client = connected(&database).await;
                }
            }
        }
    }
}

async fn connected(database: &str) -> Client {
    let connect = async || tokio_postgres::connect(database, NoTls).await;
    let (client, connection) = patiently(connect).await;
    drop(tokio::spawn(connection));
    client
}

async fn patiently<T, E: Display>(attempt: impl AsyncFn() -> Result<T, E>) -> T {
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => eprintln!("{error}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One row; `false` when all are done.
async fn step(client: &mut Client, locks: &Locks) -> Result<bool, FenceError> {
    let Some(id) = pick(client).await? else { return Ok(false) };
    let lock = locks.lock(format!("jobs:{id}")).ttl(Duration::from_secs(10));
    if let Some(lease) = lock.try_acquire().await? {
        let processed = process(client, lease.token(), id).await;
        // Lost while we worked: then what we did was refused, or was in time.
        let _ = lease.release().await;
        processed?;
    }
    Ok(true)
}

/// A row that is not done, anywhere.
async fn pick(client: &Client) -> Result<Option<i32>, FenceError> {
    let sql = "select id from jobs where state <> 'DONE' and id >= $1 order by id limit 1";
    let highest = client.query_one("select max(id) from jobs", &[]).await?.get(0);
    for from in [fastrand::i32(0..=highest), 0] {
        if let Some(row) = client.query_opt(sql, &[&from]).await? {
            return Ok(Some(row.get(0)));
        }
    }
    Ok(None)
}

async fn process(client: &mut Client, token: Token, id: i32) -> Result<(), FenceError> {
    let jobs = Rows::new("jobs", "id");
    // Either way it is ours.
    let (Moved::Now | Moved::Before) =
        claim(client, &jobs, &id, token, "NEW", "PROCESSING").await?;
    tokio::task::yield_now().await;
    complete(client, token, id).await
}

/// May be repeated after a commit whose answer was lost.
async fn complete(client: &mut Client, token: Token, id: i32) -> Result<(), FenceError> {
    let transaction = client.transaction().await?;
    let jobs = Rows::new("jobs", "id");
    if finish(&transaction, &jobs, &id, token, "PROCESSING", "DONE").await? == Moved::Now {
        let effect = "insert into effects (id, token) values ($1, $2)";
        transaction.execute(effect, &[&id, &(token.get() as i64)]).await?;
    }
    Ok(transaction.commit().await?)
}

#[tokio::test]
async fn repeated_after_its_commit_a_transition_has_its_effect_once() {
    let server = Postgres::start(&["fsync=off"]).unwrap();
    server.psql(&tables(1)).unwrap();
    let mut client = connected(&server.url()).await;
    process(&mut client, NEW, 1).await.unwrap();
    complete(&mut client, NEW, 1).await.expect("again, as after a lost answer");
    assert_eq!(server.psql("select count(*) from effects").unwrap(), "1");
}

/// Jobs that are new, and what comes of them.
fn tables(rows: u32) -> String {
    format!(
        "create table jobs (id int primary key, state text not null default 'NEW',
                            fence_token bigint not null default 0);
         create table effects (id int, token bigint);
         insert into jobs (id) select generate_series(1, {rows})"
    )
}

/// A worker process; killed at the latest when the test ends, however it ends.
struct Worker(Child);

impl Worker {
    fn start(server: &Postgres, folder: &Path) -> Self {
        let mut worker = Command::new(std::env::current_exe().unwrap());
        worker.args(["--exact", "transitions::worker", "--nocapture"]).env(DATABASE, server.url());
        worker.env(LOCKS, format!("sqlite:{}/locks.db", folder.display()));
        Self(worker.stdout(Stdio::null()).spawn().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn number(variable: &str, otherwise: u32) -> u32 {
    let text = std::env::var(variable).ok();
    text.map_or(otherwise, |text| text.parse().unwrap_or_else(|_| panic!("{variable}={text}")))
}

#[tokio::test]
async fn every_row_is_done_exactly_once_while_workers_are_killed() {
    let (count, rows) = (number("FENCING_WORKERS", 6), number("FENCING_ROWS", 300));
    let server = Postgres::start(&["fsync=off"]).unwrap();
    server.psql(&tables(rows)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = || Worker::start(&server, folder.path());
    let mut workers: Vec<_> = (0..count).map(|_| start()).collect();
    let client = connected(&server.url()).await;
    let (began, mut total) = (Instant::now(), rows);
    let (mut killed, mut next) = (0, 0);
    loop {
        let sql = "select count(*) from jobs where state = 'DONE'";
        let done = client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        if done == i64::from(total) {
            if killed >= 10 {
                break;
            }
            // On a busy machine they get on faster than they are killed: then there is more to do.
            let more = format!("select generate_series({}, {})", total + 1, total + rows);
            server.psql(&format!("insert into jobs (id) {more}")).unwrap();
            total += rows;
            workers.iter_mut().for_each(|worker| *worker = start());
        }
        let patience = PATIENCE + Duration::from_millis(100) * total;
        assert!(began.elapsed() < patience, "{done} of {total} rows are done");
        // By progress and not by time: however slow the machine is, some get on.
        if done >= next {
            next = done + 1 + i64::from(rows) / 40;
            let victim = fastrand::usize(..workers.len());
            workers[victim] = start();
            killed += 1;
        }
        for worker in &mut workers {
            if let Some(status) = worker.0.try_wait().unwrap() {
                // One that finds nothing left has ended in order, and only such a one.
                assert!(status.success(), "a worker failed: {status}");
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    drop(workers);
    let sums = "select count(*), count(distinct id), (select count(*) from jobs where state = 'DONE') from effects";
    let sums = server.psql(sums).unwrap();
    assert_eq!(sums, format!("{total}|{total}|{total}"));
    let same = "select count(*) from jobs join effects using (id) where token = fence_token";
    assert_eq!(server.psql(same).unwrap(), total.to_string());
}
