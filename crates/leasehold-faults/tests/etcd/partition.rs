//! A leader that is cut off from its cluster, and the clients that are cut off with it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::clock::Clock;
use leasehold::{ErrorKind, Lease, Token};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::namespace::Namespace;
use leasehold_faults::servers::Etcd;
use tokio::task::JoinSet;

use crate::scene::{Client, PREFIX};

const NAMES: [&str; 4] = ["a", "b", "c", "d"];

/// What a lease's own client says of it. No answer is none: members that have just met again
/// may be busy with themselves.
async fn verified(lease: &Lease) -> Token {
    loop {
        match lease.verify().await {
            Ok(token) => return token,
            Err(error) => assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}"),
        }
    }
}

/// FAULTS 3: the leader hears its clients, but no member. It goes on to answer keep-alives
/// from its memory for a while; they prove nothing. Its holders know of their loss before
/// the majority lets anybody else in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_beside_a_leader_without_majority_lose_before_others_enter() {
    let network = Arc::new(Namespace::create(23).expect("root may make namespaces"));
    let cluster = Etcd::start_apart(network.clone()).unwrap();
    cluster.make_leader(0).unwrap();
    let at = |members: &[usize]| {
        let hosts = members.iter().map(|member| cluster.addr(*member).to_string());
        format!("etcd://{}/{PREFIX}", hosts.collect::<Vec<_>>().join(","))
    };
    let (minority, majority) = (Client::at(&at(&[0])).await, Client::at(&at(&[1, 2])).await);
    let mut holders: Vec<Lease> = Vec::new();
    let mut waiters = JoinSet::new();
    for name in NAMES {
        holders.push(minority.lock(name).acquire().await.unwrap());
        let lock = majority.lock(name);
        waiters.spawn(async move {
            let lease = lock.acquire().await.unwrap();
            (name, Clock::boot().now(), lease)
        });
        eventually("it waits", async || majority.waiters(name).await == 1).await;
    }
    network.cut_ports(&cluster.peer_ports()).unwrap();
    let mut losses = Vec::new();
    for lease in &holders {
        losses.push(within_bound("the loss", lease.lost()).await);
    }
    let asking = within_bound("an answer", minority.lock("e").try_acquire()).await;
    assert_eq!(*asking.unwrap_err().kind(), ErrorKind::Unreachable);
    let mut others = Vec::new();
    while let Some(granted) = within_bound("the next holder", waiters.join_next()).await {
        let (name, since, lease) = granted.unwrap();
        let place = NAMES.iter().position(|known| *known == name).unwrap();
        assert!(losses[place].at <= since, "{name}: {:?}, entered at {since:?}", losses[place]);
        assert!(lease.token() > holders[place].token());
        others.push(lease);
    }
    network.join().unwrap();
    for lease in others {
        let token = within_bound("an answer", verified(&lease)).await;
        assert_eq!(token, lease.token(), "healing takes nothing away");
        lease.release().await.unwrap();
    }
    eventually("the minority serves again", async || minority.is_free("a").await).await;
    let lock = minority.lock("b").wait(Duration::from_secs(10));
    let next = within_bound("a grant", lock.acquire()).await.unwrap();
    assert!(next.token() > holders[1].token());
}
