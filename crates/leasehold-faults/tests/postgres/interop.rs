//! Hand-written advisory locks and ours exclude each other.

use std::time::Duration;

use leasehold::ErrorKind;
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::Postgres;
use sqlx_core::Either;
use sqlx_core::connection::Connection;
use sqlx_postgres::{PgAdvisoryLock, PgAdvisoryLockKey, PgConnection};
use tokio::task::block_in_place;

use crate::scene::{Psql, advisory, connect, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_psql_holds_we_do_not_get() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "session").await;
    for (sql, name) in [
        ("select pg_advisory_lock(1, 42)", "pg:1,42"),
        ("select pg_advisory_lock(12345)", "pg:12345"),
        // As pg_locks shows that key.
        ("select pg_advisory_lock(-1, 1)", "pg:4294967295,1"),
        // The plain SQL that the docs give for any other name.
        (
            "select pg_advisory_lock(('x' || encode(substring(sha256(convert_to(\
             'nightly-report', 'UTF8')) for 8), 'hex'))::bit(64)::bigint)",
            "nightly-report",
        ),
    ] {
        let psql = Psql::run(&server, sql);
        block_in_place(|| until("psql has it", || advisory(&server).0 == 1));
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
        let patient = locks.lock(name).wait(Duration::from_millis(300));
        let error = patient.acquire().await.unwrap_err();
        let ErrorKind::Held(Some(by)) = error.kind() else { panic!("{error:?}") };
        assert_eq!(by.holder.as_ref().unwrap().label, "psql", "{error}");
        let seen = locks.list("").await.unwrap();
        assert_eq!(seen.len(), 1, "a foreign lock is listed by its number: {seen:?}");
        let lock = locks.lock(name);
        let waiting = tokio::spawn(async move { lock.acquire().await });
        block_in_place(|| until("we wait", || advisory(&server).1 == 1));
        drop(psql);
        let lease = within_bound("the lock", waiting).await.unwrap().unwrap();
        lease.release().await.unwrap();
        block_in_place(|| until("it is free", || advisory(&server) == (0, 0)));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_we_hold_psql_does_not_get() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "session").await;
    for (name, arguments) in [("pg:1,42", "1, 42"), ("pg:-7", "-7")] {
        let lease = locks.lock(name).acquire().await.unwrap();
        let tried = server.psql(&format!("select pg_try_advisory_lock({arguments})")).unwrap();
        assert_eq!(tried, "f", "{name}");
        let psql = Psql::run(&server, &format!("select pg_advisory_lock({arguments})"));
        block_in_place(|| until("psql waits", || advisory(&server) == (1, 1)));
        lease.release().await.unwrap();
        block_in_place(|| until("psql has it", || advisory(&server) == (1, 0)));
        assert!(locks.lock(name).try_acquire().await.unwrap().is_none(), "{name}");
        drop(psql);
        block_in_place(|| until("it is free", || advisory(&server) == (0, 0)));
    }
}

/// sqlx brings an advisory lock of its own: the same key is the same lock, both ways.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sqlx_and_leasehold_exclude_each_other() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "session").await;
    let mut sqlx = PgConnection::connect(&server.url()).await.unwrap();
    let theirs = PgAdvisoryLock::with_key(PgAdvisoryLockKey::BigInt(12_345));
    let ours = locks.lock("pg:12345");
    let lease = ours.acquire().await.unwrap();
    match theirs.try_acquire(&mut sqlx).await.unwrap() {
        Either::Left(_) => panic!("sqlx got what we hold"),
        Either::Right(_) => {}
    }
    lease.release().await.unwrap();
    let Either::Left(held) = theirs.try_acquire(&mut sqlx).await.unwrap() else {
        panic!("sqlx did not get what is free")
    };
    assert!(ours.try_acquire().await.unwrap().is_none(), "we got what sqlx holds");
    let waiting = tokio::spawn(async move { ours.acquire().await.map(|lease| lease.token()) });
    block_in_place(|| until("we wait", || advisory(&server).1 == 1));
    held.release_now().await.unwrap();
    within_bound("the lock", waiting).await.unwrap().unwrap();
}

/// Session locks are re-entrant: two names of one key must not both be had by one client.
#[tokio::test]
async fn one_key_under_two_names_is_one_lock() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "session").await;
    let key = server.psql(
        "select ('x' || encode(substring(sha256('a'::bytea) for 8), 'hex'))::bit(64)::bigint",
    );
    let number = format!("pg:{}", key.unwrap());
    let lease = locks.lock("a").acquire().await.unwrap();
    assert!(locks.lock(&number).try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
    assert!(locks.lock(&number).try_acquire().await.unwrap().is_some());
}

/// They were hashed like any other name: the hand-written lock did not exclude us.
#[tokio::test]
async fn a_pg_name_that_is_no_key_is_refused() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "session").await;
    for name in
        ["pg:05", "pg:+5", "pg: 5", "pg:1, 2", "pg:1,2,3", "pg:abc", "pg:99999999999999999999"]
    {
        // Who asks at the same moment travels with it, and has no part in it.
        let (wrong, right) = (locks.lock(name), locks.lock("a"));
        let (wrong, right) = tokio::join!(wrong.acquire(), right.acquire());
        let error = wrong.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{name}");
        assert!(error.to_string().contains("pg:1,42"), "{error}");
        right.unwrap().release().await.unwrap();
    }
}

/// A row of a table does not exclude what the name promises to exclude.
#[tokio::test]
async fn lease_mode_refuses_the_names_of_advisory_locks() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "lease").await;
    for name in ["pg:12345", "pg:1,42", "pg:abc"] {
        let error = locks.lock(name).try_acquire().await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{name}");
        assert!(error.to_string().contains("mode=session"), "{error}");
    }
}
