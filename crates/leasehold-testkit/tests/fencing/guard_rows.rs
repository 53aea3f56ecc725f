//! A table whose rows have a fence each.

use leasehold::fence::postgres::guard_rows;

use crate::postgres;

fn with_token(token: u64, sql: &str) -> String {
    format!("begin; select set_config('leasehold.token', '{token}', true); {sql}; commit")
}

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
