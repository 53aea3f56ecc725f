//! What the tests here have in common.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::{Error, Locks};
use leasehold_conformance::fixture::{Fixture, within_bound};
use leasehold_faults::servers::Postgres;
use tokio::task::JoinSet;

pub(crate) fn url(server: &Postgres, mode: &str) -> String {
    format!("{}?mode={mode}", server.url())
}

pub(crate) async fn connect(server: &Postgres, mode: &str) -> Locks {
    leasehold::connect(url(server, mode)).await.expect("it connects")
}

/// Waits until `done` says so, on a thread that may block.
pub(crate) fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + Fixture::BOUND * 4;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Each of these clients takes the same lock so many times, waiting for the others.
pub(crate) async fn take_turns(clients: &[Locks], turns: usize) {
    let mut working = JoinSet::new();
    for locks in clients {
        let lock = locks.lock("turns");
        working.spawn(async move {
            for _ in 0..turns {
                let lease = lock.acquire().await?;
                lease.renew().await?;
                lease.release().await?;
            }
            Ok::<(), Error>(())
        });
    }
    while let Some(worked) = within_bound("a turn", working.join_next()).await {
        worked.expect("no panic").unwrap_or_else(|error| panic!("{error}"));
    }
}

/// A psql that runs until it is dropped.
#[derive(Debug)]
pub(crate) struct Psql(Child);

impl Psql {
    /// Runs these commands in one session, then stays connected.
    pub(crate) fn run(server: &Postgres, command: &str) -> Self {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--dbname", &server.url()]);
        psql.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = psql.spawn().expect("psql");
        let input = child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{command};").expect("psql reads");
        Self(child)
    }

    /// Runs more commands in the same session.
    pub(crate) fn say(&mut self, command: &str) {
        let input = self.0.stdin.as_mut().expect("it is piped");
        writeln!(input, "{command};").expect("psql reads");
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many advisory locks are held, and how many waited for.
pub(crate) fn advisory(server: &Postgres) -> (usize, usize) {
    let counts = server
        .psql(
            "select count(*) filter (where granted), count(*) filter (where not granted) \
             from pg_locks where locktype = 'advisory'",
        )
        .expect("pg_locks");
    let (held, waited) = counts.split_once('|').expect("two columns");
    (held.parse().expect("a number"), waited.parse().expect("a number"))
}
