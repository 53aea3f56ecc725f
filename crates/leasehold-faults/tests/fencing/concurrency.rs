//! An older transaction cannot commit after a newer one did.

use std::time::{Duration, Instant};

use leasehold::Token;
use leasehold::fence::FenceError;
use leasehold::fence::postgres::{advance, guard_table, present};
use leasehold_faults::servers::Postgres;
use tokio_postgres::Client;

use crate::{NEW, connect_alone, postgres};

/// How long anything may take on a busy machine.
const BOUND: Duration = Duration::from_secs(60);
const WRITE: &str = "update stock set available = available - 1";

async fn guarded() -> Postgres {
    let (server, client) = postgres().await;
    client
        .batch_execute(
            "create table stock (item text, available int);
             insert into stock values ('a', 100), ('b', 100)",
        )
        .await
        .unwrap();
    guard_table(&*client, "stock", None).await.unwrap();
    server
}

/// A write in a transaction that is left open, or what refuses it.
async fn begin_and_write(client: &Client, token: u64, sql: &str) -> Result<(), FenceError> {
    client.batch_execute("begin").await?;
    client.batch_execute(&format!("select set_config('leasehold.token', '{token}', true)")).await?;
    client.batch_execute(sql).await?;
    Ok(())
}

/// Waits until some session waits for a lock.
async fn until_one_waits(client: &Client) {
    until_waiting(client, 1).await;
}

/// Waits until so many sessions wait for a lock.
async fn until_waiting(client: &Client, count: i64) {
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
    let until = Instant::now() + BOUND;
    while client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < count {
        assert!(Instant::now() < until, "not so many wait: {count}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn an_older_transaction_waits_for_a_newer_one_and_is_then_refused() {
    let server = guarded().await;
    let (newer, older, watcher) = (
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
    );
    begin_and_write(&newer, 6, WRITE).await.unwrap();
    // Even one that would touch no row that the newer one has locked.
    let late = "insert into stock values ('late', 1)";
    let writing = tokio::spawn(async move { begin_and_write(&older, 5, late).await });
    until_one_waits(&watcher).await;
    newer.batch_execute("commit").await.unwrap();
    let refused = writing.await.unwrap().unwrap_err();
    assert_eq!(refused.stale().unwrap().seen, Token::new(6));
}

#[tokio::test]
async fn a_newer_transaction_that_fails_shuts_nobody_out() {
    let server = guarded().await;
    let (newer, older, watcher) = (
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
    );
    begin_and_write(&newer, 6, WRITE).await.unwrap();
    let writing = tokio::spawn(async move { begin_and_write(&older, 5, WRITE).await });
    until_one_waits(&watcher).await;
    newer.batch_execute("rollback").await.unwrap();
    writing.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_newer_transaction_waits_for_an_older_one_that_was_first() {
    let server = guarded().await;
    let (older, newer, watcher) = (
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
    );
    begin_and_write(&older, 5, "update stock set available = 5 where item = 'a'").await.unwrap();
    let insert = "insert into stock values ('c', 6)";
    let writing = tokio::spawn(async move {
        begin_and_write(&newer, 6, insert).await.unwrap();
        newer
    });
    until_one_waits(&watcher).await;
    older.batch_execute("commit").await.unwrap();
    let newer = writing.await.unwrap();
    newer.batch_execute("commit").await.unwrap();
    let error = begin_and_write(&older, 5, WRITE).await.unwrap_err();
    assert_eq!(error.stale().unwrap().seen, Token::new(6));
}

#[tokio::test]
async fn transactions_of_the_same_lease_go_on_together() {
    let server = guarded().await;
    let (mut one, two) = (connect_alone(&server.url()).await, connect_alone(&server.url()).await);
    let first = one.transaction().await.unwrap();
    present(&first, "public.stock", Token::new(5)).await.unwrap();
    first.batch_execute("update stock set available = 1 where item = 'a'").await.unwrap();
    first.commit().await.unwrap();
    let first = one.transaction().await.unwrap();
    present(&first, "public.stock", Token::new(5)).await.unwrap();
    first.batch_execute("update stock set available = 2 where item = 'a'").await.unwrap();
    // While that one is open:
    begin_and_write(&two, 5, "update stock set available = 2 where item = 'b'").await.unwrap();
    two.batch_execute("commit").await.unwrap();
    first.commit().await.unwrap();
}

#[tokio::test]
async fn a_snapshot_from_before_does_not_hide_a_newer_token() {
    let server = guarded().await;
    let (older, newer) = (connect_alone(&server.url()).await, connect_alone(&server.url()).await);
    for (level, token) in [("repeatable read", 5), ("serializable", 7)] {
        begin_and_write(&newer, token, WRITE).await.unwrap();
        newer.batch_execute("commit").await.unwrap();
        older.batch_execute(&format!("begin isolation level {level}; table stock")).await.unwrap();
        begin_and_write(&newer, token + 1, "insert into stock values ('new', 1)").await.unwrap();
        newer.batch_execute("commit").await.unwrap();
        let present = format!("select set_config('leasehold.token', '{token}', true)");
        older.batch_execute(&present).await.unwrap();
        let refused = older.batch_execute("insert into stock values ('late', 1)").await;
        assert!(refused.is_err(), "{level}");
        older.batch_execute("rollback").await.unwrap();
    }
}

/// With a shared lock on the mark's row alone, the old lease's transactions would overtake the
/// new one's for as long as they overlap.
#[tokio::test]
async fn a_newer_lease_is_not_kept_out_by_a_busy_pool_of_the_older_one() {
    let server = guarded().await;
    let connect = async || connect_alone(&server.url()).await;
    let (first, late, newer, watcher) =
        (connect().await, connect().await, connect().await, connect().await);
    let write = |item| format!("update stock set available = 1 where item = '{item}'");
    begin_and_write(&first, 5, &write("a")).await.unwrap();
    first.batch_execute("commit").await.unwrap();
    begin_and_write(&first, 5, &write("a")).await.unwrap();
    let raising = tokio::spawn(async move { advance(&newer, "public.stock", NEW).await });
    until_waiting(&watcher, 1).await;
    // Another of the older lease comes while the first is under way and the newer one waits.
    let late = tokio::spawn(async move { begin_and_write(&late, 5, &write("b")).await });
    until_waiting(&watcher, 2).await;
    first.batch_execute("commit").await.unwrap();
    raising.await.unwrap().unwrap();
    assert_eq!(late.await.unwrap().unwrap_err().stale().unwrap().seen, NEW);
}

/// What a statement sees is fixed before its trigger waits at the mark.
#[tokio::test]
async fn after_presenting_a_transaction_sees_what_the_older_lease_did() {
    let server = guarded().await;
    let (older, mut newer, watcher) = (
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
        connect_alone(&server.url()).await,
    );
    let insert = "insert into stock (item, available) select 'c', 1 \
                  where not exists (select from stock where item = 'c')";
    begin_and_write(&older, 5, insert).await.unwrap();
    let writing = tokio::spawn(async move {
        let transaction = newer.transaction().await.unwrap();
        present(&transaction, "public.stock", Token::new(6)).await.unwrap();
        let inserted = transaction.execute(insert, &[]).await.unwrap();
        transaction.commit().await.unwrap();
        inserted
    });
    until_waiting(&watcher, 1).await;
    older.batch_execute("commit").await.unwrap();
    assert_eq!(writing.await.unwrap(), 0, "the older lease had inserted it");
}
