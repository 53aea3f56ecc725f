//! Nodes that forget everything.

use std::time::Instant;

use leasehold::backend::redlock::repair;
use leasehold::clock::Clock;
use leasehold::{ErrorKind, LeaseState};
use leasehold_conformance::fixture::{eventually, within_bound};

use crate::scene::{DURABLE, LONG, SHORT, client, connect, marker, nodes};

/// FAULTS 11: sealed, told the highest token, and readmitted when no older lease is left.
#[tokio::test]
async fn a_node_that_came_back_empty_votes_again_after_the_longest_ttl() {
    let mut three = nodes(3, &[]);
    let (locks, other) = (client(&three).await, client(&three).await);
    let lease = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    let mut token = lease.token();
    three.nodes[0].kill();
    three.nodes[0].restart().unwrap();
    let forgot = Instant::now();
    assert_eq!(marker(&three.nodes[0]), "");
    // The others remember: nobody else gets it, and work goes on.
    assert!(other.lock("a").ttl(SHORT).try_acquire().await.unwrap().is_none());
    other.lock("b").ttl(SHORT).acquire().await.unwrap().release().await.unwrap();
    let votes = async || {
        let _ = other.lock("c").ttl(SHORT).try_acquire().await;
        marker(&three.nodes[0]).starts_with("member ")
    };
    eventually("it votes again", votes).await;
    assert!(forgot.elapsed() >= SHORT, "after {:?}", forgot.elapsed());
    lease.verify().await.unwrap();
    lease.release().await.unwrap();
    // It is needed now: another one is gone.
    three.nodes[2].kill();
    for _ in 0..3 {
        let lease = within_bound("the lock", other.lock("a").acquire()).await.unwrap();
        assert!(lease.token() > token);
        token = lease.token();
        lease.release().await.unwrap();
    }
}

#[tokio::test]
async fn two_of_five_that_came_back_empty_vote_again() {
    let mut five = nodes(5, &[]);
    let locks = client(&five).await;
    let before = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    for node in [1, 2] {
        five.nodes[node].kill();
        five.nodes[node].restart().unwrap();
    }
    let vote = async || {
        let _ = locks.lock("b").ttl(SHORT).try_acquire().await;
        five.nodes.iter().all(|node| marker(node).starts_with("member "))
    };
    eventually("all vote again", vote).await;
    five.nodes[0].kill();
    five.nodes[4].kill();
    let after = within_bound("the lock", locks.lock("a").acquire()).await.unwrap();
    assert!(after.token() > token);
}

/// With a majority gone nobody can know what was granted: that is an operator's decision.
#[tokio::test]
async fn a_majority_that_forgot_waits_for_an_operator() {
    let mut three = nodes(3, &[]);
    let locks = client(&three).await;
    let before = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    for node in [0, 1] {
        three.nodes[node].kill();
        three.nodes[node].restart().unwrap();
    }
    let amnesiac = async || {
        let refused = locks.lock("a").ttl(SHORT).try_acquire().await;
        refused.is_err_and(|error| {
            *error.kind() == ErrorKind::Unavailable && error.to_string().contains("amnesiac")
        })
    };
    eventually("a refusal that says why", amnesiac).await;
    let refused = leasehold::connect(three.url()).await.unwrap_err();
    assert!(refused.to_string().contains("doctor --repair"), "{refused}");
    let findings = within_bound("the repair", repair(&three.url(), Clock::boot())).await.unwrap();
    assert!(findings.iter().any(|finding| finding.what == "3 of 3 nodes vote"), "{findings:?}");
    let back = async || locks.lock("b").ttl(SHORT).try_acquire().await.is_ok();
    eventually("the old client is back", back).await;
    let after = connect(three.url()).await.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(after.token() > token);
}

/// No node knows anything: that is a new store, and the clocks keep tokens rising.
#[tokio::test]
async fn tokens_rise_when_all_nodes_forgot() {
    let three = nodes(3, &[]);
    let before = client(&three).await.lock("a").ttl(LONG).acquire().await.unwrap().token();
    for node in &three.nodes {
        assert_eq!(node.cli(&["flushall"]).unwrap(), "OK");
    }
    let after = client(&three).await.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(after.token() > before);
}

/// Whoever founds a store may stop halfway; the next client goes on.
#[tokio::test]
async fn a_founding_that_stopped_halfway_is_finished() {
    let five = nodes(5, &[]);
    let noticed = {
        let locks = client(&five).await;
        drop(locks);
        let member = marker(&five.nodes[0]);
        format!("noticed {}", member.split(' ').nth(1).unwrap())
    };
    for begun in 0..5 {
        for (place, node) in five.nodes.iter().enumerate() {
            node.cli(&["flushall"]).unwrap();
            if place >= begun {
                node.cli(&["set", "leasehold:node:lock:", &noticed]).unwrap();
            } else {
                let info = node.cli(&["info", "server"]).unwrap();
                let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
                let member = noticed.replace("noticed", "member");
                let member = format!("{member} 0 0 0 0 {}-", run.trim_end());
                node.cli(&["set", "leasehold:node:lock:", &member]).unwrap();
            }
        }
        let locks = client(&five).await;
        assert!(
            locks.lock("a").ttl(SHORT).try_acquire().await.unwrap().is_some(),
            "{begun} had begun"
        );
        let whole = async || five.nodes.iter().all(|node| marker(node).starts_with("member "));
        eventually("all vote", whole).await;
    }
}

/// FAULTS 23: a snapshot brought a node back to a time before the lease, and it voted at once:
/// two holders, although no more than one node ever failed.
#[tokio::test]
async fn a_node_that_came_back_with_older_data_does_not_vote_at_once() {
    let mut three = nodes(3, &[]);
    let (holder, other) = (client(&three).await, client(&three).await);
    other.lock("b").ttl(SHORT).acquire().await.unwrap().release().await.unwrap();
    assert_eq!(three.nodes[1].cli(&["save"]).unwrap(), "OK");
    let lease = holder.lock("a").ttl(SHORT).acquire().await.unwrap();
    // A claim to one node may be lost: two of three are enough.
    let voted = async || three.nodes[2].cli(&["del", "lock:a"]).unwrap() == "1";
    eventually("the third node has voted", voted).await;
    three.nodes[1].kill();
    three.nodes[1].restart().unwrap();
    assert!(marker(&three.nodes[1]).starts_with("member "), "it believes that it may vote");
    assert_eq!(three.nodes[1].cli(&["get", "lock:a"]).unwrap(), "");
    let fresh = client(&three).await;
    for locks in [&other, &fresh] {
        let second = locks.lock("a").ttl(SHORT).try_acquire().await;
        let second = second.ok().flatten();
        assert!(second.is_none() || lease.state() != LeaseState::Held, "two hold it: {second:?}");
    }
    let votes = async || {
        let _ = other.lock("c").ttl(SHORT).try_acquire().await;
        marker(&three.nodes[1]).starts_with("member ")
    };
    eventually("it votes again", votes).await;
    // It is needed now: another one is gone.
    three.nodes[0].kill();
    let next = within_bound("the lock", other.lock("a").acquire()).await.unwrap();
    assert!(next.token() > lease.token());
}

/// With every write on disk before it is answered, a restart has lost nothing: nobody waits.
#[tokio::test]
async fn a_node_that_keeps_every_write_votes_at_once() {
    let mut three = nodes(3, DURABLE);
    let locks = client(&three).await;
    // An hour: a node that had to wait would not be back within this test.
    let hour = std::time::Duration::from_secs(3600);
    let lease = locks.lock("a").ttl(hour).acquire().await.unwrap();
    for place in [0, 1] {
        three.nodes[place].kill();
        three.nodes[place].restart().unwrap();
    }
    three.nodes[2].kill();
    let verified = async || lease.verify().await.is_ok();
    eventually("both restarted nodes vote", verified).await;
    // What is not synced any more is not trusted after the next restart.
    for place in [0, 1] {
        three.nodes[place].cli(&["config", "set", "appendfsync", "everysec"]).unwrap();
    }
    let _fresh = client(&three).await;
    three.nodes[0].kill();
    three.nodes[0].restart().unwrap();
    let restarted = async || {
        let refused = locks.lock("b").ttl(SHORT).try_acquire().await.is_err();
        refused && marker(&three.nodes[0]).starts_with("restarted ")
    };
    eventually("one vote of three is no majority", restarted).await;
}

/// All of them came back with what they had saved: an operator decides, and tokens go on.
#[tokio::test]
async fn nodes_that_were_all_restarted_wait_for_an_operator() {
    let mut three = nodes(3, &[]);
    let locks = client(&three).await;
    let before = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    for node in &mut three.nodes {
        node.cli(&["save"]).unwrap();
        node.kill();
        node.restart().unwrap();
    }
    let refused = leasehold::connect(three.url()).await.unwrap_err();
    assert!(refused.to_string().contains("restarted"), "{refused}");
    assert!(refused.to_string().contains("doctor --repair"), "{refused}");
    let findings = within_bound("the repair", repair(&three.url(), Clock::boot())).await.unwrap();
    assert!(findings.iter().any(|finding| finding.what == "3 of 3 nodes vote"), "{findings:?}");
    let after = connect(three.url()).await.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(after.token() > token);
}

/// The wait counts at the node, not in one client: clients that come and go bring it back too.
#[tokio::test]
async fn clients_that_come_and_go_bring_a_node_back() {
    let mut three = nodes(3, &[]);
    client(&three).await.lock("a").ttl(SHORT).acquire().await.unwrap().release().await.unwrap();
    three.nodes[0].kill();
    three.nodes[0].restart().unwrap();
    let back = async || {
        drop(client(&three).await);
        marker(&three.nodes[0]).starts_with("member ")
    };
    eventually("it votes again", back).await;
}

/// A node that waits may vote again although another one has been restarted meanwhile.
#[tokio::test]
async fn nodes_that_are_restarted_one_after_the_other_vote_again() {
    let mut three = nodes(3, &[]);
    let locks = client(&three).await;
    let before = locks.lock("a").ttl(SHORT).acquire().await.unwrap();
    let token = before.token();
    before.release().await.unwrap();
    for (place, status) in [(0, "joining "), (1, "restarted ")] {
        three.nodes[place].cli(&["save"]).unwrap();
        three.nodes[place].kill();
        three.nodes[place].restart().unwrap();
        let seen = async || {
            let _ = locks.lock("b").ttl(SHORT).try_acquire().await;
            marker(&three.nodes[place]).starts_with(status)
        };
        eventually("somebody noticed the restart", seen).await;
    }
    let all = async || {
        let _ = locks.lock("b").ttl(SHORT).try_acquire().await;
        three.nodes.iter().all(|node| marker(node).starts_with("member "))
    };
    eventually("all vote again", all).await;
    let after = within_bound("the lock", locks.lock("a").acquire()).await.unwrap();
    assert!(after.token() > token);
}

/// An operator's repair that was interrupted goes on.
#[tokio::test]
async fn a_repair_that_was_interrupted_goes_on() {
    let mut three = nodes(3, &[]);
    client(&three).await.lock("a").ttl(SHORT).acquire().await.unwrap().release().await.unwrap();
    for node in &mut three.nodes {
        node.cli(&["save"]).unwrap();
        node.kill();
        node.restart().unwrap();
    }
    let url = three.url();
    let repairing = tokio::spawn(async move { repair(&url, Clock::boot()).await });
    let waits = async || three.nodes.iter().all(|node| marker(node).starts_with("joining "));
    eventually("all nodes wait", waits).await;
    repairing.abort();
    let findings = within_bound("the repair", repair(&three.url(), Clock::boot())).await.unwrap();
    assert!(findings.iter().any(|finding| finding.what == "3 of 3 nodes vote"), "{findings:?}");
}
