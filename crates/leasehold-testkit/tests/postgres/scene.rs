//! What the tests here have in common.

use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use leasehold::Locks;
use leasehold_testkit::servers::Postgres;
use leasehold_testkit::world::World;

pub fn url(server: &Postgres, mode: &str) -> String {
    format!("{}?mode={mode}", server.url())
}

pub async fn connect(server: &Postgres, mode: &str) -> Locks {
    leasehold::connect(url(server, mode)).await.expect("it connects")
}

/// Waits until `done` says so, on a thread that may block.
pub fn until(what: &str, mut done: impl FnMut() -> bool) {
    let end = Instant::now() + World::BOUND * 4;
    while !done() {
        assert!(Instant::now() < end, "{what} did not happen");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A psql that runs until it is dropped.
#[derive(Debug)]
pub struct Psql(Child);

impl Psql {
    /// Runs these commands in one session, then stays connected.
    pub fn run(server: &Postgres, command: &str) -> Self {
        let mut psql = Command::new("psql");
        psql.args(["--no-psqlrc", "--quiet", "--dbname", &server.url()]);
        psql.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = psql.spawn().expect("psql");
        let input = child.stdin.as_mut().expect("it is piped");
        writeln!(input, "{command};").expect("psql reads");
        Self(child)
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How many advisory locks are held, and how many waited for.
pub fn advisory(server: &Postgres) -> (usize, usize) {
    let counts = server
        .psql(
            "select count(*) filter (where granted), count(*) filter (where not granted) \
             from pg_locks where locktype = 'advisory'",
        )
        .expect("pg_locks");
    let (held, waited) = counts.split_once('|').expect("two columns");
    (held.parse().expect("a number"), waited.parse().expect("a number"))
}
