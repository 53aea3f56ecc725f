//! A guarded table: no write path goes around the token, in psql as anywhere.

use leasehold::Token;
use leasehold::fence::postgres::{advance, guard_table, migration, present, unguard_table};
use leasehold::fence::{FenceError, StaleToken};
use leasehold_faults::servers::Postgres;

use crate::{NEW, OLD, STALE, connect_alone, postgres, with_token};

const WRITES: [&str; 10] = [
    "insert into stock (item, available) values ('other', 1)",
    "insert into stock (item, available) values ('item', 1) \
     on conflict (item) do update set available = 1",
    "insert into stock (item, available) values ('item', 1) on conflict do nothing",
    "update stock set available = 1",
    "update stock set available = 1, fence_token = 99",
    "update only stock set available = 1 where item = 'item'",
    "delete from stock",
    "truncate stock",
    "copy stock (item, available) from program 'printf \"copied\\t1\\n\"'",
    "merge into stock s using (values ('item')) v (item) on s.item = v.item \
     when matched then update set available = 1 when not matched then insert (item) values ('x')",
];

fn stock(server: &Postgres) -> String {
    server.psql("select item, available, fence_token from stock order by item").unwrap()
}

async fn guarded() -> Postgres {
    let (server, client) = postgres().await;
    server.psql("create table stock (item text primary key, available int)").unwrap();
    assert_eq!(guard_table(&*client, "public.stock", None).await.unwrap(), "public.stock");
    guard_table(&*client, "stock", None).await.expect("guarding again changes nothing");
    let fill = "insert into stock (item, available) values ('item', 10)";
    server.psql(&with_token(34, fill)).unwrap();
    assert_eq!(stock(&server), "item|10|34");
    server
}

#[tokio::test]
async fn psql_without_a_token_or_with_an_old_one_cannot_change_a_guarded_table() {
    let server = guarded().await;
    for write in WRITES {
        let error = server.psql(write).unwrap_err().to_string();
        assert!(error.contains("no fencing token for public.stock"), "{write}: {error}");
        let error = server.psql(&with_token(33, write)).unwrap_err().to_string();
        assert!(error.contains("stale fencing token 33"), "{write}: {error}");
        assert_eq!(stock(&server), "item|10|34", "{write}");
    }
    for nonsense in ["", "x", "-1", "1.5", "99999999999999999999", " 99", "0x99"] {
        let set = format!("set leasehold.token = '{nonsense}'; update stock set available = 1");
        assert!(server.psql(&set).is_err(), "{nonsense:?}");
    }
    for write in WRITES {
        server.psql(&with_token(34, write)).unwrap_or_else(|error| panic!("{write}: {error}"));
    }
}

#[tokio::test]
async fn the_documented_ways_around_are_the_only_ones() {
    let server = guarded().await;
    // A caller's own objects in the way are not used.
    server
        .psql(
            "create schema evil;
             create function evil.current_setting(text, boolean) returns text language sql
                 as $$ select '999' $$;
             create function evil.not_matching(text, text) returns boolean language sql
                 as $$ select false $$;
             create operator evil.!~ (leftarg = text, rightarg = text,
                 function = evil.not_matching);
             create function evil.always(bigint, bigint) returns boolean language sql
                 as $$ select true $$;
             create operator evil.= (leftarg = bigint, rightarg = bigint, function = evil.always);
             create table evil.mark (resource text primary key, token bigint)",
        )
        .unwrap();
    let write = "update public.stock set available = 1";
    for path in ["evil, pg_catalog", "pg_temp, evil, pg_catalog"] {
        let evil = format!("set search_path = {path};");
        assert!(server.psql(&format!("{evil} {write}")).is_err(), "{path}");
        assert!(server.psql(&format!("{evil} {}", with_token(33, write))).is_err(), "{path}");
    }
    // A role that may only write to the table needs no more, and cannot lower the mark.
    server.psql("create role clerk; grant select, update on stock to clerk").unwrap();
    let clerk = |sql: &str| server.psql(&format!("set role clerk; {sql}"));
    assert!(clerk(&with_token(33, write)).is_err());
    clerk(&with_token(35, write)).unwrap();
    for tampering in [
        "update leasehold_fence.mark set token = 0",
        "delete from leasehold_fence.mark",
        "select leasehold_fence.forget('0 seconds')",
        "select leasehold_fence.unguard_table('stock')",
        "select leasehold_fence.advance('public.stock', 9223372036854775807)",
        "select leasehold_fence.raise_mark('public.stock', 9223372036854775807)",
        "alter table stock disable trigger all",
        "set session_replication_role = replica",
    ] {
        assert!(clerk(tampering).is_err(), "{tampering}");
    }
    // The escapes: a superuser's session, the owner's word.
    server.psql("set session_replication_role = replica; update stock set available = 7").unwrap();
    let client = connect_alone(&server.url()).await;
    unguard_table(&client, "stock").await.unwrap();
    server.psql("update stock set available = 8").unwrap();
    assert_eq!(stock(&server), "item|8|35");
}

#[tokio::test]
async fn partitions_cannot_be_written_past_the_guard() {
    let (server, client) = postgres().await;
    server
        .psql(
            "create table stock (item text, day int, primary key (item, day)) partition by range (day);
             create table stock_1 partition of stock for values from (0) to (10);
             create table plain (item text); create table child () inherits (plain)",
        )
        .unwrap();
    for (below, above) in [("stock_1", "stock"), ("child", "plain")] {
        let refused = guard_table(&*client, below, None).await.unwrap_err().to_string();
        assert!(refused.contains("is a partition or inherits"), "{above}: {refused}");
    }
    guard_table(&*client, "stock", Some("days")).await.unwrap();
    guard_table(&*client, "plain", None).await.unwrap();
    server.psql("create table stock_2 partition of stock for values from (10) to (20)").unwrap();
    let rows = "insert into stock (item, day) values ('a', 1), ('b', 11)";
    server.psql(&with_token(34, rows)).unwrap();
    for write in [
        "insert into stock_1 (item, day) values ('c', 2)",
        "insert into stock_2 (item, day) values ('c', 12)",
        "update stock_1 set day = 3",
        "update stock set day = day + 10 where day < 10",
        "delete from stock_2",
        "truncate stock_1",
        "truncate stock",
        "insert into child (item) values ('a')",
    ] {
        assert!(server.psql(write).is_err(), "{write}");
        let late = server.psql(&with_token(33, write));
        // The other resource has seen nothing yet.
        assert_eq!(late.is_err(), !write.contains("child"), "{write}");
    }
    // Guarding again covers the new partition's own TRUNCATE.
    guard_table(&*client, "stock", Some("days")).await.unwrap();
    assert!(server.psql(&with_token(33, "truncate stock_2")).is_err());
    server.psql(&with_token(34, "update stock set day = day + 10 where day < 10")).unwrap();
    assert_eq!(server.psql("select count(*) from stock_2").unwrap(), "2");
}

#[tokio::test]
async fn the_helpers_and_the_printed_migration_say_what_happened() {
    let (server, mut client) = {
        let server = Postgres::start(&["fsync=off"]).unwrap();
        let client = connect_alone(&server.url()).await;
        (server, client)
    };
    server.psql("create table \"Odd 'name\" (n int)").unwrap();
    server.psql(&migration("Odd 'name", Some("it's"))).unwrap();
    server.psql(&migration("Odd 'name", Some("it's"))).expect("twice");
    let write = "insert into \"Odd 'name\" values (1)";

    advance(&client, "it's", NEW).await.unwrap();
    let transaction = client.transaction().await.unwrap();
    let late = present(&transaction, "it's", OLD).await.unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    drop(transaction);
    let transaction = client.transaction().await.unwrap();
    transaction.batch_execute("select set_config('leasehold.token', '33', true)").await.unwrap();
    let late: FenceError = transaction.execute(write, &[]).await.unwrap_err().into();
    assert_eq!(late.stale(), Some(STALE));
    drop(transaction);
    let missing: FenceError = client.execute(write, &[]).await.unwrap_err().into();
    assert!(matches!(&missing, FenceError::NoToken { resource, .. } if resource == "it's"));
    let transaction = client.transaction().await.unwrap();
    present(&transaction, "it's", NEW).await.unwrap();
    transaction.execute(write, &[]).await.unwrap();
    transaction.commit().await.unwrap();
    let error = advance(&client, "it's", Token::new(1)).await.unwrap_err();
    assert_eq!(error.stale(), Some(StaleToken { given: Token::new(1), seen: NEW }));
    // The token ended with its transaction.
    assert!(client.execute(write, &[]).await.is_err());
}
