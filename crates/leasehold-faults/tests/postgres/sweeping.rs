//! Rows of idle locks are forgotten, and their tokens are not.

use std::time::Duration;

use leasehold_faults::servers::Postgres;

use crate::scene::connect;

const IDLE: u64 = 5_000;
/// Ahead of every clock: only the floor keeps a new token above it.
const AHEAD: u64 = 4_400_000_000_000_000;

fn count(server: &Postgres, which: &str) -> u64 {
    let count = format!("select count(*) from leasehold.locks where {which}");
    server.psql(&count).unwrap().parse().unwrap()
}

/// What a client does once a minute, with rows that have been idle for an hour: how many rows each
/// page of the table removed.
fn sweep(server: &Postgres) -> Vec<u64> {
    let (mut after, mut seen, mut swept) = (String::new(), "null".to_owned(), Vec::new());
    loop {
        let page = format!(
            "select coalesce(last, ''), coalesce(highest::text, 'null'), swept \
             from leasehold.sweep_page('{after}', {seen}, interval '1 hour', interval '0')"
        );
        let said = server.psql(&page).unwrap();
        let columns: Vec<&str> = said.split('|').collect();
        swept.push(columns[2].parse().unwrap());
        (after, seen) = (columns[0].to_owned(), columns[1].to_owned());
        if after.is_empty() {
            return swept;
        }
    }
}

/// One sweep removed 1,000 rows and began the minute again: 30,000 new names in half an hour left
/// 22,000 rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sweep_removes_all_that_is_idle() {
    let server = Postgres::start(&[]).unwrap();
    let locks = connect(&server, "lease").await;
    let held = locks.lock("held").ttl(Duration::from_secs(600)).acquire().await.unwrap();
    let row =
        "insert into leasehold.locks (name, token, proved, term, expires, since, crowded, bars)";
    let hours = "now() - interval '2 hours'";
    server
        .psql(&format!(
            "{row} select 'idle-' || n, {AHEAD} + n, 0, 0, {hours}, {hours}, false, null \
             from generate_series(1, {IDLE}) n"
        ))
        .unwrap();
    let tomorrow = "array[now() + interval '1 day']";
    for (name, crowded, tombstones) in [("crowded", true, "null"), ("settled", false, tomorrow)] {
        let kept = format!("values ('{name}', 1, 0, 0, {hours}, {hours}, {crowded}, {tombstones})");
        server.psql(&format!("{row} {kept}")).unwrap();
    }
    let first = sweep(&server);
    assert_eq!(first.iter().sum::<u64>(), 0, "the floor is below their tokens: {first:?}");
    let second = sweep(&server);
    assert_eq!(second.iter().sum::<u64>(), IDLE, "{second:?}");
    assert!(second.iter().all(|swept| *swept <= 2_000), "in short transactions: {second:?}");
    assert_eq!(count(&server, "name in ('held', 'crowded', 'settled')"), 3);
    assert_eq!(count(&server, "name like 'idle-%'"), 0);
    let again = locks.lock("idle-1").acquire().await.unwrap();
    assert!(again.token().get() > AHEAD + IDLE, "{:?}", again.token());
    held.renew().await.unwrap();
}

/// A clock that had been a year ahead for a moment kept everybody from sweeping for a year.
#[tokio::test]
async fn a_clock_that_was_set_back_does_not_stop_the_sweeping() {
    let server = Postgres::start(&[]).unwrap();
    drop(connect(&server, "lease").await);
    server.psql("update leasehold.meta set floor_at = now() + interval '1 year'").unwrap();
    sweep(&server);
    let ahead = "select floor_at > clock_timestamp() from leasehold.meta";
    assert_eq!(server.psql(ahead).unwrap(), "f");
}
