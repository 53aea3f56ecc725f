//! What a role, a database or a server may have as defaults, and what our sessions make of it.

use std::collections::HashSet;
use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Postgres;
use tokio::task::block_in_place;

use crate::scene::{connect, take_turns, url};

/// Meant for other programs.
const HOSTILE: [&str; 12] = [
    "default_transaction_isolation=serializable",
    "default_transaction_deferrable=on",
    "statement_timeout=300ms",
    "lock_timeout=1ms",
    "idle_session_timeout=300ms",
    "idle_in_transaction_session_timeout=300ms",
    "search_path=nowhere",
    "row_security=off",
    "bytea_output=escape",
    "datestyle=German",
    "intervalstyle=sql_standard",
    "timezone=Pacific/Chatham",
];

/// Those of ours that are open.
fn sessions(server: &Postgres) -> HashSet<String> {
    let pids = "select pid from pg_stat_activity where application_name = 'leasehold'";
    server.psql(pids).unwrap().lines().map(str::to_owned).collect()
}

/// Waits ended with `could not serialize access` (203), and sessions with their time-outs.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn defaults_of_others_are_not_ours() {
    let server = Postgres::start(&HOSTILE).unwrap();
    for mode in ["lease", "session"] {
        let mut clients = Vec::new();
        for _ in 0..3 {
            clients.push(connect(&server, mode).await);
        }
        take_turns(&clients, 10).await;
        let lease = clients[0].lock("a").acquire().await.unwrap();
        let lock = clients[1].lock("a");
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let waits = async || clients[2].inspect("a").await.unwrap().waiters == 1;
        eventually("it waits", waits).await;
        let before = block_in_place(|| sessions(&server));
        // Longer than each of the time-outs: nothing happens, and that is it.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let after = block_in_place(|| sessions(&server));
        assert!(before.is_subset(&after), "{mode}: {before:?} became {after:?}");
        lease.release().await.unwrap();
        let next = within_bound("the lock", waiting).await.unwrap().unwrap();
        next.release().await.unwrap();
    }
}

/// The setting may mean that the disk is full: the claim is refused, and nothing is written.
#[tokio::test]
async fn a_role_that_only_reads_is_refused() {
    let server = Postgres::start(&["default_transaction_read_only=on"]).unwrap();
    for mode in ["lease", "session"] {
        let error = leasehold::connect(url(&server, mode)).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("default_transaction_read_only"), "{error}");
    }
}
