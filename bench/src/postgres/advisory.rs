//! The yardstick for session mode: try and unlock, prepared, pipelined on one connection.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Statement};

use super::{connection, tasks};
use crate::pairs::Run;
use crate::stats::{Latencies, latencies, record};

pub(super) fn run(runtime: &Arc<Runtime>, url: &str, count: usize) -> Result<Run> {
    let client = connection(runtime, url)?;
    let (lock, unlock) = runtime.block_on(async {
        let lock = client.prepare("select pg_try_advisory_lock($1)").await?;
        Ok::<_, anyhow::Error>((lock, client.prepare("select pg_advisory_unlock($1)").await?))
    })?;
    let runtime = runtime.clone();
    Ok(Box::new(move |measure| {
        let end = Instant::now() + measure;
        let each = |task: usize| {
            pairs_until(end, client.clone(), lock.clone(), unlock.clone(), task as i64 * 1_000_003)
        };
        tasks(&runtime, (0..count).map(each).collect())
    }))
}

async fn pairs_until(
    end: Instant,
    client: Arc<Client>,
    lock: Statement,
    unlock: Statement,
    first: i64,
) -> Result<Latencies> {
    let mut latencies = latencies();
    let mut before = Instant::now();
    let mut key = first;
    while before < end {
        key = first + (key + 1 - first) % 16;
        let got: bool = client.query_one(&lock, &[&key]).await?.get(0);
        let gave: bool = client.query_one(&unlock, &[&key]).await?.get(0);
        ensure!(got && gave, "the raw loop lost its own lock");
        let after = Instant::now();
        record(&mut latencies, after - before);
        before = after;
    }
    Ok(latencies)
}
