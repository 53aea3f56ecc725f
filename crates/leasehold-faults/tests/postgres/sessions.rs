//! What happens to sessions, and to the locks they carry.

use std::task::Poll;
use std::time::Duration;

use leasehold::{ErrorKind, LeaseState, LossReason};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::proxy::{Proxy, Way};
use leasehold_faults::servers::Postgres;

use tokio::task::block_in_place;

use crate::scene::{advisory, connect, url};

const TTL: Duration = Duration::from_secs(5);

/// Ends the sessions of all clients.
fn terminate(server: &Postgres) {
    let terminate = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                     where application_name = 'leasehold'";
    assert_ne!(server.psql(terminate).unwrap(), "0");
}

/// Loss when the connection ends, seen at once: long before the deadline.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_session_is_lost_at_once() {
    let server = Postgres::start(&[]).unwrap();
    let (holder, other) = (connect(&server, "session").await, connect(&server, "lease").await);
    let long = Duration::from_secs(600);
    let shared = holder.lock("shared").ttl(long).acquire().await.unwrap();
    let second = connect(&server, "session").await;
    let waited = second.lock("waited").ttl(long).acquire().await.unwrap();
    let lock = holder.lock("waited").ttl(long);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let waits = async || second.inspect("waited").await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    waited.release().await.unwrap();
    let waited = within_bound("the lock", waiting).await.unwrap().unwrap();
    let row = other.lock("row").ttl(long).acquire().await.unwrap();
    terminate(&server);
    for lease in [&shared, &waited] {
        let loss = within_bound("the loss", lease.lost()).await;
        assert_eq!(loss.reason, LossReason::SessionEnded);
    }
    // In lease mode the lock is in the table: a new connection goes on.
    within_bound("a new connection", async { while row.renew().await.is_err() {} }).await;
    assert_eq!(row.state(), LeaseState::Held);
    let again = within_bound("the lock", holder.lock("shared").acquire()).await.unwrap();
    assert!(again.token() > shared.token());
    let error = shared.release().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::NotHeld);
    assert_eq!(again.verify().await.unwrap(), again.token(), "not released by the old lease");
}

/// A server that hears nothing lets go after one and a half TTLs; the holder knew before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_network_ends_the_session_on_both_sides() {
    let server = Postgres::start(&[]).unwrap();
    let proxy = Proxy::to(server.addr()).await.unwrap();
    let cut_off = format!("postgres://postgres@{}/postgres?mode=session", proxy.addr());
    let first = leasehold::connect(cut_off).await.unwrap();
    let second = connect(&server, "session").await;
    let lease = first.lock("a").ttl(TTL).acquire().await.unwrap();
    let lock = second.lock("a").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let waits = async || second.inspect("a").await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    proxy.drop_one_way(Way::Requests);
    proxy.drop_one_way(Way::Replies);
    let next = within_bound("the lock", waiting).await.unwrap().unwrap();
    assert!(matches!(lease.state(), LeaseState::Lost(_)), "{:?}", lease.state());
    assert!(next.token() > lease.token());
}

/// Force-release ends a session, and so all its locks: it says so and wants to be told twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn force_release_of_a_session_with_more_locks_wants_confirmation() {
    let server = Postgres::start(&[]).unwrap();
    let holder = connect(&server, "session").await;
    let operator = connect(&server, "session").await;
    let one = holder.lock("one").acquire().await.unwrap();
    let two = holder.lock("two").acquire().await.unwrap();
    let error = operator.force_release("one", "stuck").await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("1 more lock"), "{error}");
    assert_eq!(one.verify().await.unwrap(), one.token());
    let confirmed = format!("{}&force=session", url(&server, "session"));
    let operator = leasehold::connect(confirmed).await.unwrap();
    assert_eq!(operator.force_release("one", "stuck").await.unwrap(), Some(one.token()));
    let loss = within_bound("the loss", one.lost()).await;
    assert!(matches!(loss.reason, LossReason::Forced(_)), "{loss:?}");
    let loss = within_bound("the loss", two.lost()).await;
    assert_eq!(loss.reason, LossReason::SessionEnded);
}

/// In session mode leaving the queue asked nobody, and the wait ended with "held by" (201).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_goes_away_during_a_wait_is_not_reported_as_held() {
    for mode in ["lease", "session"] {
        let mut server = Postgres::start(&[]).unwrap();
        let (holder, client) = (connect(&server, mode).await, connect(&server, mode).await);
        let long = Duration::from_secs(600);
        let _lease = holder.lock("a").ttl(long).acquire().await.unwrap();
        let lock = client.lock("a").ttl(long).wait(Duration::from_secs(3));
        let waiting = tokio::spawn(async move { lock.acquire().await });
        let waits = async || holder.inspect("a").await.unwrap().waiters == 1;
        eventually("it waits", waits).await;
        block_in_place(|| server.crash());
        let error = within_bound("the end", waiting).await.unwrap().unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{mode}: {error}");
    }
}

/// A cancelled wait leaves neither a waiter nor a lock behind, however often.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_waits_leave_nothing_behind() {
    let server = Postgres::start(&[]).unwrap();
    let (holder, client) = (connect(&server, "session").await, connect(&server, "session").await);
    let lease = holder.lock("a").acquire().await.unwrap();
    for round in 0..10 {
        let lock = client.lock("a").wait(Duration::from_millis(5 * round));
        let _ = lock.acquire().await.unwrap_err();
    }
    eventually("nobody waits", async || block_in_place(|| advisory(&server)) == (1, 0)).await;
    lease.release().await.unwrap();
    eventually("nobody holds it", async || block_in_place(|| advisory(&server)) == (0, 0)).await;
}

/// A caller may keep its future and not poll it. What the server grants it meanwhile is written
/// down all the same, and given back when its TTL is over: nobody else waits for ever.
#[tokio::test]
async fn what_is_granted_to_a_caller_that_does_not_poll_lapses() {
    const SHORT: Duration = Duration::from_secs(1);
    let server = Postgres::start(&[]).unwrap();
    let (idle, other) = (connect(&server, "session").await, connect(&server, "session").await);
    // From now on one poll is enough to have the server asked.
    idle.lock("warm").ttl(SHORT).acquire().await.unwrap().release().await.unwrap();
    for in_line in [false, true] {
        let held = match in_line {
            true => Some(other.lock("a").acquire().await.unwrap()),
            false => None,
        };
        let lock = idle.lock("a").ttl(SHORT);
        let mut claim = std::pin::pin!(lock.acquire());
        if let Some(held) = held {
            let waits = async || advisory(&server).1 == 1;
            tokio::select! {
                biased;
                _ = &mut claim => panic!("another has it"),
                () = eventually("it waits in the queue", waits) => {}
            }
            held.release().await.unwrap();
        } else {
            let polled = std::future::poll_fn(|cx| Poll::Ready(claim.as_mut().poll(cx).is_ready()));
            assert!(!polled.await, "the server was not asked yet");
            eventually("the server has granted it", async || advisory(&server).0 == 1).await;
        }
        let next = within_bound("the lock", other.lock("a").acquire()).await.unwrap();
        next.release().await.unwrap();
        // What it had is over, and it tries again.
        within_bound("the lock", claim).await.unwrap().release().await.unwrap();
    }
}
