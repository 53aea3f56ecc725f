//! The server is killed, restarted, or replaced by its standby: no token comes twice.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use leasehold::{LeaseState, Locks, Token};
use leasehold_testkit::servers::Postgres;
use leasehold_testkit::world::within_bound;
use parking_lot::Mutex;
use tokio::runtime::Runtime;

use crate::scene::{connect, until, url};

const ACQUIRERS: usize = 64;
const CLIENTS: usize = 4;
const LOCKS: usize = 16;
const CRASHES: usize = 3;
const TTL: Duration = Duration::from_secs(2);

/// Every token that was handed out, and the highest of each lock at the last crash.
#[derive(Debug, Default)]
struct Ledger {
    tokens: Mutex<HashMap<usize, Vec<Token>>>,
    over: AtomicBool,
}

impl Ledger {
    fn count(&self) -> usize {
        self.tokens.lock().values().map(Vec::len).sum()
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

fn crash_amid_acquirers(mode: &str) {
    let mut server = Postgres::start(&[]).unwrap();
    let runtime = Runtime::new().unwrap();
    let ledger = Arc::new(Ledger::default());
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let locks = runtime.block_on(connect(&server, mode));
        for _ in 0..ACQUIRERS / CLIENTS {
            let acquiring = acquirer(locks.clone(), tasks.len(), ledger.clone());
            tasks.push(runtime.spawn(acquiring));
        }
    }
    for _ in 0..CRASHES {
        let before = ledger.count();
        until("acquirers are at it", || ledger.count() > before + 200);
        // In the middle of it: nobody stops for this.
        server.crash();
        let highest: HashMap<usize, Token> = {
            let tokens = ledger.tokens.lock();
            tokens.iter().map(|(lock, all)| (*lock, *all.iter().max().unwrap())).collect()
        };
        let handed_out = ledger.count();
        server.restart().unwrap();
        until("they go on", || ledger.count() > handed_out + ACQUIRERS);
        // What was asked before the crash is settled by now, and recorded.
        let fresh = runtime.block_on(async {
            let locks = connect(&server, mode).await;
            let lock = locks.lock("lock-0").ttl(TTL);
            within_bound("a lock after the crash", lock.acquire()).await.unwrap().token()
        });
        assert!(highest.get(&0).is_none_or(|highest| fresh > *highest));
    }
    ledger.over.store(true, Ordering::Relaxed);
    runtime.block_on(async {
        for task in tasks {
            within_bound("an acquirer's end", task).await.unwrap();
        }
    });
    for (lock, mut tokens) in std::mem::take(&mut *ledger.tokens.lock()) {
        let all = tokens.len();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), all, "lock-{lock} had a token twice");
    }
}

#[test]
fn no_token_twice_over_crashes_in_lease_mode() {
    crash_amid_acquirers("lease");
}

#[test]
fn no_token_twice_over_crashes_in_session_mode() {
    crash_amid_acquirers("session");
}

/// What was granted before a crash is held after it, and renewed.
#[test]
fn a_lease_survives_a_crash_and_a_session_does_not() {
    let mut server = Postgres::start(&[]).unwrap();
    let runtime = Runtime::new().unwrap();
    let long = Duration::from_secs(120);
    let (row, session) = runtime.block_on(async {
        let row = connect(&server, "lease").await.lock("a").ttl(long).acquire().await.unwrap();
        let session = connect(&server, "session").await;
        (row, session.lock("a").ttl(long).acquire().await.unwrap())
    });
    server.crash();
    runtime.block_on(within_bound("the session's loss", session.lost()));
    server.restart().unwrap();
    runtime.block_on(async {
        within_bound("a renewal", async { while row.renew().await.is_err() {} }).await;
        assert_eq!(row.state(), LeaseState::Held);
        let other = connect(&server, "lease").await;
        assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    });
}

/// A standby that never heard of the last tokens gives none of them again.
#[test]
fn a_promoted_standby_that_lagged_repeats_no_token() {
    let mut primary = Postgres::start(&[]).unwrap();
    let runtime = Runtime::new().unwrap();
    let modes = ["lease", "session"];
    let acquire = async |server: &Postgres, mode: &str| {
        let locks = leasehold::connect(url(server, mode)).await.unwrap();
        let lease = locks.lock("a").ttl(TTL).acquire().await.unwrap();
        let token = lease.token();
        lease.release().await.unwrap();
        token
    };
    for mode in modes {
        runtime.block_on(acquire(&primary, mode));
    }
    let standby = primary.standby().unwrap();
    // Cut the stream: from here on it hears nothing.
    standby.psql("alter system set primary_conninfo = ''").unwrap();
    standby.psql("select pg_reload_conf()").unwrap();
    let streams = || primary.psql("select count(*) from pg_stat_replication").unwrap();
    until("the stream is cut", || streams() == "0");
    let before: Vec<Token> =
        modes.iter().map(|mode| runtime.block_on(acquire(&primary, mode))).collect();
    primary.crash();
    standby.promote().unwrap();
    for (mode, before) in modes.iter().zip(before) {
        let after = runtime.block_on(acquire(&standby, mode));
        assert!(after > before, "{mode}: {after} after {before}");
    }
}
