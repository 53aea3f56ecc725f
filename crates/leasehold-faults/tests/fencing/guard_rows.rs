//! A table whose rows have a fence each.

use leasehold::Token;
use leasehold::fence::postgres::{guard_rows, present_row};

use crate::{NEW, OLD, STALE, connect_alone, postgres, with_token};

#[tokio::test]
async fn each_row_has_its_own_mark_and_deleted_rows_keep_theirs() {
    let (server, client) = postgres().await;
    server
        .psql("create table seats (hall int, seat int, taken_by text, primary key (hall, seat))")
        .unwrap();
    guard_rows(&*client, "seats", None).await.unwrap();
    let write = |token, sql: &str| server.psql(&with_token(token, sql));
    let refused = |token, sql: &str| {
        let error = write(token, sql).unwrap_err().to_string();
        assert!(error.contains("stale fencing token"), "{sql}: {error}");
    };
    write(9, "insert into seats values (1, 1, 'ann')").unwrap();
    write(5, "insert into seats values (1, 2, 'bob')").unwrap();
    refused(8, "update seats set taken_by = 'late' where seat = 1");
    refused(8, "delete from seats where seat = 1");
    refused(
        8,
        "insert into seats values (1, 1, 'late') on conflict (hall, seat) do update set taken_by = 'late'",
    );
    write(6, "update seats set taken_by = 'eve' where seat = 2").unwrap();
    assert!(server.psql("delete from seats").is_err(), "no token");
    assert!(write(99, "truncate seats").is_err(), "it would forget the tokens");

    write(9, "delete from seats where seat = 1").unwrap();
    refused(8, "insert into seats values (1, 1, 'late')");
    // Nor by changing another row's key.
    refused(8, "update seats set seat = 1 where seat = 2");
    write(9, "insert into seats values (1, 1, 'ann')").unwrap();
    write(10, "update seats set seat = 3 where seat = 1").unwrap();
    refused(9, "insert into seats values (1, 1, 'late')");
    let all = server.psql("select seat, taken_by, fence_token from seats order by seat").unwrap();
    assert_eq!(all, "2|eve|6\n3|ann|10");
}

#[tokio::test]
async fn advancing_a_row_shuts_the_older_lease_out_before_the_first_write() {
    let (server, client) = postgres().await;
    server.psql("create table seats (hall int, seat numeric, primary key (hall, seat))").unwrap();
    assert_eq!(guard_rows(&*client, "seats", None).await.unwrap(), "public.seats");
    server.psql(&with_token(5, "insert into seats values (1, 1), (1, 2)")).unwrap();
    let mut client = connect_alone(&server.url()).await;
    let transaction = client.transaction().await.unwrap();
    let key = r#"{"seat": 1.0, "hall": 1}"#;
    present_row(&transaction, "public.seats", key, NEW).await.unwrap();
    transaction.commit().await.unwrap();
    for late in ["update seats set hall = hall", "delete from seats"] {
        let error = server.psql(&with_token(33, &format!("{late} where seat = 1"))).unwrap_err();
        assert!(error.to_string().contains("stale fencing token 33"), "{late}: {error}");
    }
    server.psql(&with_token(6, "update seats set hall = hall where seat = 2")).unwrap();
    let transaction = client.transaction().await.unwrap();
    let late = present_row(&transaction, "public.seats", key, OLD).await.unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    drop(transaction);
    let transaction = client.transaction().await.unwrap();
    present_row(&transaction, "public.seats", key, Token::new(35)).await.unwrap();
    assert_eq!(transaction.execute("delete from seats where seat = 1", &[]).await.unwrap(), 1);
}

#[tokio::test]
async fn a_tombstone_is_found_however_the_key_is_spelled() {
    let (server, client) = postgres().await;
    server
        .psql(
            "create domain cents as numeric;
             create table slots (at timestamptz, price cents, id bytea, primary key (at, price, id))",
        )
        .unwrap();
    guard_rows(&*client, "slots", None).await.unwrap();
    let insert = "insert into slots values ('2026-01-31 12:00+00', 1.0, 'a')";
    server.psql(&with_token(9, insert)).unwrap();
    server.psql(&with_token(9, "delete from slots")).unwrap();
    for spelling in
        ["set timezone = 'Asia/Tokyo'", "set bytea_output = 'escape'", "set datestyle = 'German'"]
    {
        let back = "insert into slots values ('2026-01-31 13:00+01', 1.00, 'a')";
        let error = server.psql(&format!("{spelling}; {}", with_token(8, back))).unwrap_err();
        assert!(error.to_string().contains("stale fencing token 8"), "{spelling}: {error}");
    }
    for kind in ["interval", "double precision", "int[]"] {
        server
            .psql(&format!("drop table if exists odd; create table odd (id {kind} primary key)"))
            .unwrap();
        let refused = guard_rows(&*client, "odd", None).await.unwrap_err().to_string();
        assert!(refused.contains("cannot be fenced"), "{kind}: {refused}");
    }
}

/// Blanks at its end are no part of such a key, but were part of the mark's name.
#[tokio::test]
async fn a_tombstone_is_found_whatever_blanks_a_character_key_ends_with() {
    let (server, client) = postgres().await;
    for (at, kind) in ["bpchar", "padded", "char(5)"].into_iter().enumerate() {
        let table = format!("codes_{at}");
        server
            .psql(&format!(
                "drop domain if exists padded; create domain padded as bpchar;
                 create table {table} (code {kind} primary key)"
            ))
            .unwrap();
        guard_rows(&*client, &table, None).await.unwrap();
        server.psql(&with_token(9, &format!("insert into {table} values ('ab ')"))).unwrap();
        server.psql(&with_token(9, &format!("delete from {table}"))).unwrap();
        for spelling in ["ab", "ab   "] {
            let back = format!("insert into {table} values ('{spelling}')");
            let error = server.psql(&with_token(8, &back)).unwrap_err();
            assert!(error.to_string().contains("stale fencing token 8"), "{kind}: {error}");
        }
        server.psql(&with_token(8, &format!("insert into {table} values (' ab')"))).unwrap();
        server.psql(&with_token(9, &format!("drop table {table}"))).unwrap();
    }
}
