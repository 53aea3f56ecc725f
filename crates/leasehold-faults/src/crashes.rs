//! PostgreSQL killed with -9 in the middle of many acquirers, again and again: no token comes
//! twice. Three times in the tests, as often as one likes by `scripts/faults postgres crash`.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold::{Locks, Token};
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::servers::Postgres;
use leasehold_conformance::fixture::Fixture;

const ACQUIRERS: usize = 64;
const CLIENTS: usize = 4;
const LOCKS: usize = 16;
const TTL: Duration = Duration::from_secs(2);
/// For what has to happen, on a machine that has much else to do.
const PATIENCE: Duration = Fixture::BOUND.saturating_mul(4);

/// Every token that was handed out, by lock.
#[derive(Debug, Default)]
struct Ledger {
    tokens: Mutex<HashMap<usize, Vec<Token>>>,
    over: AtomicBool,
}

impl Ledger {
    fn count(&self) -> usize {
        self.tokens.lock().values().map(Vec::len).sum()
    }

    fn highest(&self) -> HashMap<usize, Token> {
        let tokens = self.tokens.lock();
        tokens.iter().filter_map(|(lock, all)| Some((*lock, *all.iter().max()?))).collect()
    }

    /// Waits until so many were handed out.
    fn await_count(&self, wanted: usize, what: &str) -> Result<()> {
        let until = Instant::now() + PATIENCE;
        while self.count() < wanted {
            ensure!(Instant::now() < until, "{what}: {} of {wanted} tokens", self.count());
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }
}

async fn acquirer(locks: Locks, first: usize, ledger: Arc<Ledger>) {
    let mut turn = first;
    while !ledger.over.load(Ordering::Relaxed) {
        let lock = turn % LOCKS;
        turn += 1;
        let wait = Duration::from_millis(500);
        match locks.lock(format!("lock-{lock}")).ttl(TTL).wait(wait).acquire().await {
            Ok(lease) => {
                ledger.tokens.lock().entry(lock).or_default().push(lease.token());
                let _ = lease.release().await;
            }
            // The server is down.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Kills the server so many times while 64 tasks acquire in this mode, `lease` or `session`.
/// How many tokens were handed out, none of them twice.
///
/// # Errors
///
/// When a token came twice, did not rise over a crash, or nobody gets anything any more.
pub fn amid_acquirers(mode: &str, times: usize) -> Result<usize> {
    let mut server = Postgres::start(&[])?;
    let runtime = Runtime::new()?;
    let url = format!("{}?mode={mode}", server.url());
    let connect = || runtime.block_on(async { leasehold::connect(url.as_str()).await });
    let ledger = Arc::new(Ledger::default());
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let locks = connect()?;
        for _ in 0..ACQUIRERS / CLIENTS {
            tasks.push(runtime.spawn(acquirer(locks.clone(), tasks.len(), ledger.clone())));
        }
    }
    for _ in 0..times {
        ledger.await_count(ledger.count() + 200, "before the crash")?;
        // In the middle of it: nobody stops for this.
        server.crash();
        let highest = ledger.highest();
        let handed_out = ledger.count();
        server.restart()?;
        ledger.await_count(handed_out + ACQUIRERS, "after the crash")?;
        // What was asked before the crash is settled by now, and recorded.
        let locks = connect()?;
        let lock = locks.lock("lock-0").ttl(TTL).wait(PATIENCE);
        let fresh = runtime.block_on(lock.acquire())?.token();
        let rises = highest.get(&0).is_none_or(|highest| fresh > *highest);
        ensure!(rises, "lock-0 had a higher token before the crash than {fresh}");
    }
    ledger.over.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for task in tasks {
            let ended = tokio::time::timeout(PATIENCE, task).await;
            ended.context("an acquirer does not end")??;
        }
        Ok::<(), anyhow::Error>(())
    })?;
    for (lock, tokens) in &mut *ledger.tokens.lock() {
        let all = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        ensure!(tokens.len() == all, "lock-{lock} had a token twice");
    }
    Ok(ledger.count())
}
