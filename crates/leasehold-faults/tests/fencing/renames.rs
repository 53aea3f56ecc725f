//! Marks stay with a table that is guarded under another name.
//!
//! They went by the name alone: after a rename and a new guard, token 33 was accepted over a row that
//! 34 had written.

use std::time::{Duration, Instant};

use leasehold::Token;
use leasehold::fence::postgres::{advance, guard_rows, guard_table, unguard_table};
use leasehold_faults::servers::Postgres;

use crate::{NEW, OLD, STALE, connect_alone, postgres, with_token};

/// How long anything may take on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

#[track_caller]
fn refused(server: &Postgres, token: u64, sql: &str) {
    let error = server.psql(&with_token(token, sql)).expect_err(sql).to_string();
    assert!(error.contains(&format!("stale fencing token {token}")), "{sql}: {error}");
}

#[tokio::test]
async fn a_guard_under_another_name_keeps_the_mark() {
    let (server, client) = postgres().await;
    server.psql("create table stock (item text primary key); create schema other").unwrap();
    guard_table(&*client, "stock", None).await.unwrap();
    server.psql(&with_token(34, "insert into stock values ('item')")).unwrap();

    server.psql("alter table stock rename to shelf").unwrap();
    assert_eq!(guard_table(&*client, "shelf", None).await.unwrap(), "public.shelf");
    refused(&server, 33, "delete from shelf");
    server.psql("alter table shelf set schema other").unwrap();
    assert_eq!(guard_table(&*client, "other.shelf", None).await.unwrap(), "other.shelf");
    refused(&server, 33, "delete from other.shelf");
    guard_table(&*client, "other.shelf", Some("all goods")).await.unwrap();
    refused(&server, 33, "delete from other.shelf");

    // The mark may be higher than what any row says, and the guard may have been off meanwhile.
    server.psql(&with_token(34, "delete from other.shelf")).unwrap();
    advance(&*client, "all goods", Token::new(40)).await.unwrap();
    unguard_table(&*client, "other.shelf").await.unwrap();
    server.psql("alter table other.shelf rename to \"it's [1]\"").unwrap();
    guard_table(&*client, "other.it's [1]", None).await.unwrap();
    let insert = "insert into other.\"it's [1]\" values ('late')";
    refused(&server, 39, insert);
    server.psql(&with_token(40, insert)).unwrap();
}

#[tokio::test]
async fn a_guard_begins_at_the_tokens_of_the_rows() {
    let (server, client) = postgres().await;
    server
        .psql(
            "create table stock (item text primary key, fence_token bigint not null);
             insert into stock values ('a', 34), ('b', 7)",
        )
        .unwrap();
    guard_table(&*client, "stock", None).await.unwrap();
    refused(&server, 33, "delete from stock");
    server.psql(&with_token(34, "delete from stock")).unwrap();
}

#[tokio::test]
async fn deleted_rows_stay_deleted_when_their_table_is_guarded_under_another_name() {
    let (server, client) = postgres().await;
    server.psql("create table seats (id int primary key)").unwrap();
    guard_rows(&*client, "seats", None).await.unwrap();
    server.psql(&with_token(34, "insert into seats values (1), (2)")).unwrap();
    server.psql(&with_token(34, "delete from seats where id = 1")).unwrap();
    server.psql("alter table seats rename to chairs").unwrap();
    guard_rows(&*client, "chairs", None).await.unwrap();
    refused(&server, 33, "insert into chairs values (1)");
    refused(&server, 33, "update chairs set id = 1");
    server.psql(&with_token(5, "insert into chairs values (3)")).expect("a row of its own");
    // A guard of the whole table is no lower than what its rows have seen.
    guard_table(&*client, "chairs", None).await.unwrap();
    refused(&server, 33, "insert into chairs values (1)");
}

#[tokio::test]
async fn a_guard_waits_for_writers_and_refuses_to_overlook_an_open_advance() {
    let (server, client) = postgres().await;
    server.psql("create table stock (item text)").unwrap();
    guard_table(&*client, "stock", None).await.unwrap();
    server.psql("alter table stock rename to shelf").unwrap();
    let (writer, guarding) =
        (connect_alone(&server.url()).await, connect_alone(&server.url()).await);
    writer
        .batch_execute(
            "begin; select set_config('leasehold.token', '34', true);
             insert into shelf values ('a')",
        )
        .await
        .unwrap();
    let guard = tokio::spawn(async move { guard_table(&guarding, "shelf", None).await });
    let waiting = "select count(*) from pg_stat_activity where wait_event_type = 'Lock'";
    let until = Instant::now() + BOUND;
    while client.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        assert!(Instant::now() < until, "the guard does not wait for the writer");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    writer.batch_execute("commit").await.unwrap();
    assert_eq!(guard.await.unwrap().unwrap(), "public.shelf");
    refused(&server, 33, "delete from shelf");

    // An advance that is not committed has no lock on the table that the guard could wait for.
    writer.batch_execute("begin").await.unwrap();
    advance(&writer, "public.shelf", Token::new(40)).await.unwrap();
    let early = guard_table(&*client, "shelf", Some("goods")).await.unwrap_err();
    assert!(early.to_string().contains("is under way"), "{early}");
    writer.batch_execute("commit").await.unwrap();
    guard_table(&*client, "shelf", Some("goods")).await.unwrap();
    refused(&server, 39, "delete from shelf");
}

/// A transaction with a snapshot from before would not see the tokens that the new mark must have.
#[tokio::test]
async fn a_snapshot_from_before_does_not_guard() {
    let (server, client) = postgres().await;
    server.psql("create table stock (item text, fence_token bigint not null default 0)").unwrap();
    for level in ["repeatable read", "serializable"] {
        client.batch_execute(&format!("begin isolation level {level}; table stock")).await.unwrap();
        let refused = guard_table(&*client, "stock", None).await.unwrap_err();
        assert!(refused.to_string().contains("read committed"), "{level}: {refused}");
        client.batch_execute("rollback").await.unwrap();
    }
    server.psql("insert into stock values ('a', 34)").unwrap();
    guard_table(&*client, "stock", None).await.unwrap();
    let late = advance(&*client, "public.stock", OLD).await.unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    advance(&*client, "public.stock", NEW).await.unwrap();
}
