//! The yardstick for the embedded store: what SQLite itself needs for a lock with a
//! token, in two single-statement transactions, with nothing around them.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rusqlite::{Connection, params};

use crate::stats::{Latencies, Sample, Start, latencies, record};
use crate::usage;

const TAKE: &str = "insert into lease (name, owner, token, expires) values (?1, ?2, 1, ?3) \
     on conflict (name) do update \
     set owner = excluded.owner, token = token + 1, expires = excluded.expires \
     where owner is null or expires < ?4 returning token";
const GIVE_BACK: &str =
    "update lease set owner = null where name = ?1 and owner = ?2 and token = ?3";

/// One connection and the names it locks.
#[derive(Debug)]
pub(crate) struct Raw {
    connection: Connection,
    names: Vec<String>,
    next: usize,
}

impl Raw {
    pub(crate) fn open(path: &Path, names: Vec<String>) -> Result<Self> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(20))?;
        connection.pragma_update(None, "journal_mode", "wal")?;
        connection.pragma_update(None, "synchronous", "normal")?;
        connection.execute_batch(
            "create table if not exists lease (name text primary key, owner blob, \
             token integer not null, expires integer not null) strict, without rowid",
        )?;
        Ok(Self { connection, names, next: 0 })
    }

    /// Pair after pair for this long.
    pub(crate) fn run(&mut self, measure: Duration) -> Result<Sample> {
        let started = Start::now();
        let latencies = self.pairs_until(started.at + measure)?;
        Ok(Sample::since(started, latencies))
    }

    fn pairs_until(&mut self, end: Instant) -> Result<Latencies> {
        let mut take = self.connection.prepare(TAKE)?;
        let mut give_back = self.connection.prepare(GIVE_BACK)?;
        let owner = [7u8; 16];
        let mut latencies = latencies();
        let mut before = Instant::now();
        while before < end {
            let name = &self.names[self.next % self.names.len()];
            self.next += 1;
            let token: i64 =
                take.query_row(params![name, owner, 30_000i64, 0i64], |row| row.get(0))?;
            let given = give_back.execute(params![name, owner, token])?;
            ensure!(given == 1, "the raw loop lost its own lock");
            let after = Instant::now();
            record(&mut latencies, after - before);
            before = after;
        }
        Ok(latencies)
    }
}

/// Several connections, each on a thread of its own, side by side.
pub(crate) fn run_all(loops: &mut [Raw], measure: Duration) -> Result<Sample> {
    let started = Start::now();
    let end = started.at + measure;
    let parts: Vec<Result<Latencies>> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            loops.iter_mut().map(|raw| scope.spawn(move || raw.pairs_until(end))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a raw loop panicked")).collect()
    });
    let mut all = latencies();
    for part in parts {
        all.add(part?)?;
    }
    Ok(Sample::since(started, all))
}

/// The CPU time SQLite itself needs to extend one of `leases` leases, when `batch` of
/// them share a transaction.
pub(crate) fn renewal(path: &Path, leases: usize, batch: usize) -> Result<Duration> {
    let raw = Raw::open(path, Vec::new())?;
    let connection = &raw.connection;
    let mut insert = connection.prepare("insert into lease values (?1, ?2, 1, 0)")?;
    let mut renew = connection
        .prepare("update lease set expires = ?4 where name = ?1 and owner = ?2 and token = ?3")?;
    let name = |index: usize| format!("held:{index}");
    connection.execute_batch("begin")?;
    for index in 0..leases {
        insert.execute(params![name(index), [7u8; 16]])?;
    }
    connection.execute_batch("commit")?;
    let before = usage::cpu();
    // In no order of the names, like renewals that are due at random; 7919 is prime.
    let order: Vec<usize> = (0..leases).map(|index| index * 7919 % leases).collect();
    for due in order.chunks(batch) {
        connection.execute_batch("begin immediate")?;
        for index in due {
            let renewed = renew.execute(params![name(*index), [7u8; 16], 1i64, 1i64])?;
            ensure!(renewed == 1, "the raw loop lost a lease");
        }
        connection.execute_batch("commit")?;
    }
    Ok((usage::cpu() - before) / u32::try_from(leases)?)
}
