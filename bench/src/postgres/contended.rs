//! Many clients on one lock, each with connections of its own.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use leasehold::Locks;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Statement};

use super::{connection, tasks};
use crate::pairs::Run;
use crate::stats::{Latencies, latencies, record};

/// The lock they all want.
const KEY: i64 = 4_711;

/// Blocking `pg_advisory_lock`: the server's own queue.
pub(super) fn raw(runtime: &Arc<Runtime>, url: &str, count: usize) -> Result<Run> {
    let mut clients = Vec::new();
    for _ in 0..count {
        let client = connection(runtime, url)?;
        let prepare = async {
            let lock = client.prepare("select pg_advisory_lock($1)").await?;
            Ok::<_, anyhow::Error>((lock, client.prepare("select pg_advisory_unlock($1)").await?))
        };
        let (lock, unlock) = runtime.block_on(prepare)?;
        clients.push((client, lock, unlock));
    }
    let runtime = runtime.clone();
    Ok(Box::new(move |measure| {
        let end = Instant::now() + measure;
        let each = |(client, lock, unlock): &(Arc<Client>, Statement, Statement)| {
            block_until(end, client.clone(), lock.clone(), unlock.clone())
        };
        tasks(&runtime, clients.iter().map(each).collect())
    }))
}

async fn block_until(
    end: Instant,
    client: Arc<Client>,
    lock: Statement,
    unlock: Statement,
) -> Result<Latencies> {
    let mut latencies = latencies();
    let mut before = Instant::now();
    while before < end {
        client.query_one(&lock, &[&KEY]).await?;
        let gave: bool = client.query_one(&unlock, &[&KEY]).await?.get(0);
        ensure!(gave, "the raw loop lost its own lock");
        let after = Instant::now();
        record(&mut latencies, after - before);
        before = after;
    }
    Ok(latencies)
}

/// The same with ours.
pub(super) fn ours(runtime: &Arc<Runtime>, clients: Vec<Locks>) -> Run {
    let runtime = runtime.clone();
    Box::new(move |measure| {
        let end = Instant::now() + measure;
        let each = |locks: &Locks| acquire_until(end, locks.clone());
        tasks(&runtime, clients.iter().map(each).collect())
    })
}

async fn acquire_until(end: Instant, locks: Locks) -> Result<Latencies> {
    let mut latencies = latencies();
    let mut before = Instant::now();
    while before < end {
        locks.lock("bench:contended").acquire().await?.release().await?;
        let after = Instant::now();
        record(&mut latencies, after - before);
        before = after;
    }
    Ok(latencies)
}
