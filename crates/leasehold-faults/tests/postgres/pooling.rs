//! A transaction pooler in front: refused where a session is needed, else worked through.

use leasehold::{ErrorKind, LeaseState, Severity};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::{PgBouncer, Postgres};

use crate::scene::take_turns;

/// pgbouncer#102, authentik#23876: session locks stranded in a pool. However it hands out
/// its sessions, it is noticed.
#[tokio::test]
async fn session_mode_refuses_a_transaction_pooler() {
    let server = Postgres::start(&[]).unwrap();
    for settings in [
        &[][..],
        &["default_pool_size = 1"],
        &["server_round_robin = 1", "min_pool_size = 3", "default_pool_size = 3"],
    ] {
        let pooler = PgBouncer::start(&server, "transaction", settings).unwrap();
        let error = leasehold::connect(format!("{}?mode=session", pooler.url())).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{settings:?}");
        let told = error.to_string();
        assert!(told.contains("pooler") && told.contains("mode=lease"), "{told}");
    }
    assert_eq!(
        server.psql("select count(*) from pg_locks where locktype = 'advisory'").unwrap(),
        "0"
    );
}

#[tokio::test]
async fn session_mode_works_through_a_session_pooler() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server, "session", &[]).unwrap();
    let locks = leasehold::connect(format!("{}?mode=session", pooler.url())).await.unwrap();
    let lease = locks.lock("a").acquire().await.unwrap();
    assert_eq!(lease.verify().await.unwrap(), lease.token());
    lease.release().await.unwrap();
}

/// The pooler's sessions are not ours to set.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_mode_works_through_a_transaction_pooler_to_a_serializable_database() {
    let server = Postgres::start(&["default_transaction_isolation=serializable"]).unwrap();
    let pooler = PgBouncer::start(&server, "transaction", &[]).unwrap();
    let mut clients = Vec::new();
    for _ in 0..3 {
        clients.push(leasehold::connect(pooler.url()).await.unwrap());
    }
    take_turns(&clients, 5).await;
}

#[tokio::test]
async fn lease_mode_works_through_a_transaction_pooler() {
    let server = Postgres::start(&[]).unwrap();
    let pooler = PgBouncer::start(&server, "transaction", &["default_pool_size = 2"]).unwrap();
    let around = format!("{}?listen=127.0.0.1:{}", pooler.url(), server.port());
    for (url, wakes) in [(pooler.url(), false), (around, true)] {
        let first = leasehold::connect(&url).await.unwrap();
        let second = leasehold::connect(&url).await.unwrap();
        let lease = first.lock("a").acquire().await.unwrap();
        let lock = second.lock("a");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let waits = async || first.inspect("a").await.unwrap().waiters == 1;
        eventually("it waits", waits).await;
        let listeners = || {
            let count = "select count(*) from pg_stat_activity where query ilike 'listen%'";
            server.psql(count).unwrap()
        };
        let expected = if wakes { "1" } else { "0" };
        eventually("it listens, or does not", async || listeners() == expected).await;
        lease.release().await.unwrap();
        let next = within_bound("the lock", waiting).await.unwrap().unwrap();
        assert_eq!(next.state(), LeaseState::Held);
        let findings = second.examine().await.unwrap();
        let pooled = findings.iter().find(|finding| finding.what.contains("pooler")).unwrap();
        let severity = if wakes { Severity::Fine } else { Severity::Warning };
        assert_eq!(pooled.severity, severity, "{pooled:?}");
        next.release().await.unwrap();
    }
}
