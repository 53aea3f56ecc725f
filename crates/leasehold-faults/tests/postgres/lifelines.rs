//! What a session that carries locks must bear, and what it must not keep.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::postgres::{self, SCHEMA};
use leasehold::backend::{Claim, Renewal, Verdict};
use leasehold::clock::Clock;
use leasehold::{Holder, Name};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::Postgres;
use tokio::task::block_in_place;

use crate::scene::{Psql, advisory, connect, until, url};

/// A pg_dump reads the sequence of tokens and goes on for hours: sessions begin meanwhile,
/// and draw their tokens.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_reads_the_sequence_holds_nobody_up() {
    let server = Postgres::start(&[]).unwrap();
    let before = connect(&server, "session").await;
    let _dump = Psql::run(&server, "begin; select last_value from leasehold.tokens");
    let reads = "select count(*) from pg_locks l join pg_stat_activity a using (pid) \
                 where l.relation = 'leasehold.tokens'::regclass and a.state = 'idle in transaction'";
    block_in_place(|| until("it reads", || server.psql(reads).unwrap() == "1"));
    let begun = within_bound("a session", connect(&server, "session")).await;
    for locks in [before, begun] {
        let lease = within_bound("a lock", locks.lock("a").acquire()).await.unwrap();
        lease.release().await.unwrap();
    }
}

/// The server is told how long to keep a silent session: for the longest TTL, also when a
/// shorter one comes at the same moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shorter_ttl_does_not_end_a_longer_one() {
    let server = Postgres::start(&[]).unwrap();
    let store = postgres::open(&url(&server, "session"), Clock::boot()).await.unwrap();
    let holder = Arc::new(Holder::this_process());
    let claim = |name: &str, ttl: u64| {
        Claim::new(Name::new(name).unwrap(), Duration::from_secs(ttl), holder.clone())
    };
    let (long, short) = (claim("long", 600), claim("short", 1));
    let ask = |claim: &Claim| store.clone().acquire(vec![claim.clone()]);
    let (granted, _) = tokio::join!(ask(&long), ask(&short));
    let [Verdict::Granted(grant)] = granted.unwrap()[..] else { panic!("it is free") };
    // Longer than the short one's session would be kept: nothing happens, and that is it.
    tokio::time::sleep(Duration::from_secs(4)).await;
    let renewed = store.clone().renew(vec![long.hold(grant.token)]).await.unwrap();
    assert!(matches!(renewed[..], [Renewal::Renewed(_)]), "{renewed:?}");
}

/// A session that cannot give a lock back is ended: the lock would be in everybody's way.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_unlock_that_fails_leaves_no_lock_behind() {
    let server = Postgres::start(&[]).unwrap();
    server.psql(SCHEMA).unwrap();
    server.psql("create role worker login").unwrap();
    server.psql("grant usage on schema leasehold to worker").unwrap();
    for kind in ["tables", "sequences"] {
        server.psql(&format!("grant all on all {kind} in schema leasehold to worker")).unwrap();
    }
    let url = format!("postgres://worker@127.0.0.1:{}/postgres?mode=session", server.port());
    let locks = leasehold::connect(url).await.unwrap();
    let lease = locks.lock("a").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    assert_ne!(advisory(&server).0, 0);
    let unlock = "execute on function pg_advisory_unlock(bigint)";
    server.psql(&format!("revoke {unlock} from public")).unwrap();
    let _ = within_bound("the release", lease.release()).await;
    block_in_place(|| until("it is given back", || advisory(&server) == (0, 0)));
    server.psql(&format!("grant {unlock} to public")).unwrap();
    let again = within_bound("the lock", locks.lock("a").acquire()).await.unwrap();
    again.release().await.unwrap();
}
