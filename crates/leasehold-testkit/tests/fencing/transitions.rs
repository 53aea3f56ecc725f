//! Many workers, killed at random: every row goes NEW → PROCESSING → DONE exactly once.
//!
//! `FENCING_WORKERS` and `FENCING_ROWS` make it longer; the whole course is 64 and 10000.

use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::fence::FenceError;
use leasehold::fence::postgres::{Rows, claim, finish};
use leasehold::{Lease, Locks};
use leasehold_testkit::servers::Postgres;
use tokio_postgres::Client;

use crate::connect_alone;

const DATABASE: &str = "LEASEHOLD_TEST_DATABASE";
const LOCKS: &str = "LEASEHOLD_TEST_LOCKS";
/// How long the whole course may take on a busy machine: three minutes, and a tenth of a
/// second for each row.
const PATIENCE: Duration = Duration::from_secs(180);

/// Not a test by itself: the process that the other test starts and kills.
#[tokio::test]
async fn worker() {
    let (Ok(database), Ok(locks)) = (std::env::var(DATABASE), std::env::var(LOCKS)) else { return };
    let mut client = connect_alone(&database).await;
    let locks = leasehold::connect(locks).await.unwrap();
    while let Some(id) = pick(&client).await {
        if let Some(lease) = take(&locks, id).await {
            match process(&mut client, &lease, id).await {
                Ok(()) | Err(FenceError::Stale(_) | FenceError::WrongState { .. }) => {}
                Err(error) => panic!("row {id}: {error}"),
            }
            // Lost while we worked: then what we did was refused, or was in time.
            let _ = lease.release().await;
        }
    }
}

/// A row that is not done, anywhere.
async fn pick(client: &Client) -> Option<i32> {
    let sql = "select id from jobs where state <> 'DONE' and id >= $1 order by id limit 1";
    let highest = client.query_one("select max(id) from jobs", &[]).await.unwrap().get(0);
    for from in [fastrand::i32(0..=highest), 0] {
        if let Some(row) = client.query_opt(sql, &[&from]).await.unwrap() {
            return Some(row.get(0));
        }
    }
    None
}

async fn take(locks: &Locks, id: i32) -> Option<Lease> {
    let lock = locks.lock(format!("jobs:{id}")).ttl(Duration::from_secs(10));
    lock.try_acquire().await.unwrap()
}

async fn process(client: &mut Client, lease: &Lease, id: i32) -> Result<(), FenceError> {
    let (jobs, token) = (Rows::new("jobs", "id"), lease.token());
    claim(client, &jobs, &id, token, "NEW", "PROCESSING").await?;
    tokio::task::yield_now().await;
    let transaction = client.transaction().await?;
    finish(&transaction, &jobs, &id, token, "PROCESSING", "DONE").await?;
    let effect = "insert into effects (id, token) values ($1, $2)";
    transaction.execute(effect, &[&id, &(token.get() as i64)]).await?;
    Ok(transaction.commit().await?)
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
    let setup = format!(
        "create table jobs (id int primary key, state text not null default 'NEW',
                            fence_token bigint not null default 0);
         create table effects (id int, token bigint);
         insert into jobs (id) select generate_series(1, {rows})"
    );
    server.psql(&setup).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let start = || Worker::start(&server, folder.path());
    let mut workers: Vec<_> = (0..count).map(|_| start()).collect();
    let client = connect_alone(&server.url()).await;
    let until = Instant::now() + PATIENCE + Duration::from_millis(100) * rows;
    let (mut killed, mut next) = (0, 0);
    loop {
        let sql = "select count(*) from jobs where state = 'DONE'";
        let done = client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
        if done == i64::from(rows) {
            break;
        }
        assert!(Instant::now() < until, "{done} of {rows} rows are done");
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
    assert!(killed >= 10, "only {killed} were killed");
    drop(workers);
    let sums = "select count(*), count(distinct id), (select count(*) from jobs where state = 'DONE') from effects";
    let sums = server.psql(sums).unwrap();
    assert_eq!(sums, format!("{rows}|{rows}|{rows}"));
    let same = "select count(*) from jobs join effects using (id) where token = fence_token";
    assert_eq!(server.psql(same).unwrap(), rows.to_string());
}
