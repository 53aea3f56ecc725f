//! A server that forgets: all its data, its scripts, or the time.

use leasehold::LeaseState;
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::faketime::FakeTime;
use leasehold_faults::servers::Redis;

use crate::client::{LONG, acquire, client, granted, server, until_waiters};

/// FAULTS 10: the counter is gone, the clock is not.
#[tokio::test]
async fn tokens_rise_over_flushall() {
    let server = server();
    let locks = client(&server).await;
    for round in 0..5 {
        let before = locks.lock("a").ttl(LONG).acquire().await.unwrap();
        let token = before.token();
        if round % 2 == 0 {
            before.release().await.unwrap();
        }
        assert_eq!(server.cli(&["flushall"]).unwrap(), "OK");
        let after = locks.lock("a").ttl(LONG).acquire().await.unwrap();
        assert!(after.token() > token, "{} after {token}", after.token());
        after.release().await.unwrap();
    }
}

/// FAULTS 6: killed without persistence, restarted at once. The client finds it again.
#[tokio::test]
async fn tokens_rise_over_a_restart_without_persistence() {
    let mut server = server();
    let locks = client(&server).await;
    let before = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    server.kill();
    let refused = within_bound("an error", locks.lock("b").try_acquire()).await;
    refused.expect_err("nobody is there");
    server.restart().unwrap();
    let back = async || locks.lock("b").try_acquire().await.is_ok();
    eventually("the client is back", back).await;
    let after = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(after.token() > before.token());
    let lost = within_bound("the loss", before.lost()).await;
    assert!(before.state() != LeaseState::Held, "{lost}");
}

/// FAULTS 7: what was answered is still there after a crash, and keeps others out.
#[tokio::test]
async fn leases_survive_a_crash_with_an_append_only_file() {
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let mut server = Redis::start(&options).unwrap();
    let (holder, other) = (client(&server).await, client(&server).await);
    assert!(holder.guarantees().survives_restart);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    server.kill();
    server.restart().unwrap();
    let proved = async || lease.verify().await.is_ok();
    eventually("the lease is proved again", proved).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let token = lease.token();
    lease.release().await.unwrap();
    let next = other.lock("a").acquire().await.unwrap();
    assert!(next.token() > token);
}

/// The queue is lost with everything else: waiters join it again by themselves.
#[tokio::test]
async fn waiters_go_on_after_flushall() {
    let server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    server.cli(&["flushall"]).unwrap();
    let next = granted(waiting).await;
    assert!(next.token() > lease.token());
    lease.renew().await.expect_err("it is another's");
    assert_eq!(next.verify().await.unwrap(), next.token());
}

/// The same when only the queue goes: they wait on, behind the same holder.
#[tokio::test]
async fn waiters_go_on_when_the_queue_is_lost() {
    let server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    let keys = server.cli(&["keys", "*leasehold:queue:lock:a"]).unwrap();
    assert_eq!(server.cli(&["del", &keys]).unwrap(), "1");
    until_waiters(&holder, "a", 1).await;
    lease.release().await.unwrap();
    granted(waiting).await.release().await.unwrap();
}

/// A restart loses the queue, the leases and the connections.
#[tokio::test]
async fn waiters_go_on_after_a_restart() {
    let mut server = server();
    let (holder, waiter) = (client(&server).await, client(&server).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    server.kill();
    server.restart().unwrap();
    let next = granted(waiting).await;
    assert!(next.token() > lease.token());
}

/// FAULTS 10: scripts are told again.
#[tokio::test]
async fn scripts_are_loaded_again() {
    let server = server();
    let locks = client(&server).await;
    for _ in 0..3 {
        let lease = locks.lock("a").acquire().await.unwrap();
        server.cli(&["script", "flush"]).unwrap();
        lease.renew().await.unwrap();
        server.cli(&["script", "flush"]).unwrap();
        lease.release().await.unwrap();
        server.cli(&["script", "flush"]).unwrap();
        assert!(locks.list("").await.unwrap().is_empty());
    }
}

/// FAULTS 10: a server that stands still for a while costs time, no lease.
#[tokio::test]
async fn a_server_that_stands_still_for_a_while_costs_no_lease() {
    let server = server();
    let locks = client(&server).await;
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    for pause in [["client", "pause", "700"], ["debug", "sleep", "0.7"]] {
        server.cli(&pause).unwrap();
        let other = within_bound("an answer", locks.lock("b").acquire()).await.unwrap();
        other.release().await.unwrap();
        assert_eq!(lease.verify().await.unwrap(), lease.token());
    }
}

/// FAULTS 5: the clock that tokens follow is set back. The counter remembers.
#[tokio::test]
async fn tokens_rise_when_the_servers_clock_goes_back() {
    let folder = tempfile::tempdir().unwrap();
    let clock = FakeTime::new(folder.path()).expect("scripts/test installs libfaketime");
    let wrapper = clock.wrapper();
    let wrapper: Vec<_> = wrapper.iter().map(String::as_str).collect();
    let server = Redis::start_under(&wrapper, &[]).unwrap();
    let locks = client(&server).await;
    let mut last = leasehold::Token::new(0);
    for offset in [0, 86_400, 0, -86_400, 3_600] {
        clock.set(offset).unwrap();
        for _ in 0..3 {
            let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
            assert!(lease.token() > last, "{} after {last} at {offset}", lease.token());
            last = lease.token();
            lease.release().await.unwrap();
        }
        // What remembers the token does so until the clock has passed it.
        let key = server.cli(&["keys", "*leasehold:record:lock:a"]).unwrap();
        let left: u64 = server.cli(&["pttl", &key]).unwrap().parse().unwrap();
        let now: u64 = server.cli(&["time"]).unwrap().lines().next().unwrap().parse().unwrap();
        assert!((now * 1000 + left) * 1000 > last.get(), "{left} ms at {offset}");
    }
}
