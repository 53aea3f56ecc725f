//! The tokens of session mode go with the database's clock, and never fall.

use leasehold::{ErrorKind, Severity, Token};
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::Postgres;
use tokio::runtime::Runtime;
use tokio::task::{JoinSet, block_in_place};

use crate::scene::{Psql, advisory, connect, until, url};

const TOGETHER: usize = 4;

/// The last token that was drawn or lifted to.
fn last(server: &Postgres) -> u64 {
    server.psql("select last_value from leasehold.tokens").unwrap().parse().unwrap()
}

/// How far the sequence is ahead of the database's clock, in seconds.
fn ahead(server: &Postgres) -> f64 {
    let ahead =
        "select last_value / 1e6 - extract(epoch from clock_timestamp()) from leasehold.tokens";
    server.psql(ahead).unwrap().parse().unwrap()
}

/// Takes a lock so many times; the last token.
async fn draw(server: &Postgres, times: usize) -> Option<Token> {
    let locks = connect(server, "session").await;
    let mut last = None;
    for _ in 0..times {
        let lease = locks.lock("a").acquire().await.unwrap();
        last = Some(lease.token());
        lease.release().await.unwrap();
    }
    last
}

/// Each session read the clock, then waited for the sequence, found itself behind those before
/// it, and added 100 s: 60 short runs were 4,998 s ahead, and tokens fell after a fail-over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sessions_that_begin_together_do_not_push_the_tokens_past_the_clock() {
    let server = Postgres::start(&[]).unwrap();
    drop(connect(&server, "session").await);
    let mut gate = Psql::run(&server, "begin; alter sequence leasehold.tokens owned by none");
    let sessions = |state: &str| {
        let count = "select count(*) from pg_locks where relation = 'leasehold.tokens'::regclass";
        server.psql(&format!("{count} and {state}")).unwrap()
    };
    block_in_place(|| {
        until("the sequence is locked", || {
            sessions("granted and mode = 'ShareRowExclusiveLock'") == "1"
        });
    });
    let mut coming = JoinSet::new();
    for _ in 0..TOGETHER {
        let url = url(&server, "session");
        coming.spawn(async move { leasehold::connect(url).await });
    }
    let all = TOGETHER.to_string();
    block_in_place(|| until("all of them wait for it", || sessions("not granted") == all));
    // Another session lifts it while they wait: then it is ahead of a clock that was read before the
    // wait, in whichever order they come.
    gate.say("select setval('leasehold.tokens', leasehold.clock_floor()); commit");
    while let Some(came) = within_bound("a session", coming.join_next()).await {
        came.unwrap().unwrap();
    }
    let ahead = ahead(&server);
    assert!(ahead < 1.0, "the tokens are {ahead} s ahead of the clock");
}

/// The step was added for every session that found the sequence ahead: it ran away faster than
/// any clock goes.
#[tokio::test]
async fn sessions_do_not_raise_tokens_that_are_ahead_of_the_clock() {
    let server = Postgres::start_with_clock(&[]).unwrap();
    drop(connect(&server, "session").await);
    server.set_clock(-3_600).unwrap();
    let before = last(&server);
    for _ in 0..5 {
        drop(connect(&server, "session").await);
    }
    assert_eq!(last(&server), before);
    let findings = connect(&server, "session").await.examine().await.unwrap();
    let told = findings.iter().find(|finding| finding.what.contains("leasehold.tokens"));
    assert_eq!(told.map(|finding| finding.severity), Some(Severity::Warning), "{findings:?}");
}

/// A crash takes back tokens that did not wait for the disk, and here the clock is no help.
#[test]
fn a_crash_while_the_clock_is_behind_repeats_no_token() {
    let mut server = Postgres::start_with_clock(&["wal_writer_delay=10s"]).unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(draw(&server, 1));
    server.set_clock(-3_600).unwrap();
    let before = runtime.block_on(draw(&server, 100));
    server.crash();
    server.restart().unwrap();
    let after = runtime.block_on(draw(&server, 1));
    assert!(after > before, "{after:?} after {before:?}");
    let stepped = last(&server);
    runtime.block_on(draw(&server, 0));
    assert_eq!(last(&server), stepped, "the step over what may be lost is made once");
}

/// Near 2^53 every connect failed, with a number out of bounds and nothing to do about it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_that_are_used_up_are_refused_with_what_to_do() {
    let server = Postgres::start(&[]).unwrap();
    drop(connect(&server, "session").await);
    server.psql("select setval('leasehold.tokens', 9007199254740989)").unwrap();
    let token = draw(&server, 2).await.unwrap();
    assert_eq!(token.get(), 9_007_199_254_740_991, "the last one that JavaScript can carry");
    let locks = connect(&server, "session").await;
    let error = locks.lock("a").acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("setval"), "{error}");
    block_in_place(|| until("nothing is left behind", || advisory(&server) == (0, 0)));
}
