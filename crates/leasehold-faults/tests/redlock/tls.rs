//! TLS and credentials, at every node.

use leasehold::ErrorKind;
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::{Authority, Redis};

use crate::scene::{LONG, connect};

/// Three nodes that speak TLS, and to nobody without a password: the user `locks` has one.
fn nodes(authority: &Authority) -> (Vec<Redis>, String) {
    let user = ["acl", "setuser", "locks", "on", ">se%cret", "~*", "&*", "+@all"];
    let started = (0..3).map(|_| {
        let (node, port) = authority.redis("no", &["--requirepass", "another"]).expect("a node");
        node.cli(&user).expect("the node answers");
        (node, port)
    });
    let (nodes, ports): (Vec<_>, Vec<_>) = started.unzip();
    let hosts: Vec<_> = ports.iter().map(|port| format!("127.0.0.1:{port}")).collect();
    (nodes, hosts.join(","))
}

#[tokio::test]
async fn nodes_may_want_tls_and_credentials() {
    let authority = Authority::new().unwrap();
    let (_nodes, hosts) = nodes(&authority);
    let ca = authority.file("ca.pem");
    let url = format!("redlocks://locks:se%25cret@{hosts}?ca={}", ca.display());
    let (holder, other) = (connect(url.clone()).await, connect(url).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    assert!(other.lock("a").ttl(LONG).try_acquire().await.unwrap().is_none());
    let token = lease.token();
    lease.release().await.unwrap();
    let next = within_bound("the lock", other.lock("a").ttl(LONG).acquire()).await.unwrap();
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn without_them_no_node_votes() {
    let (authority, stranger) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (_nodes, hosts) = nodes(&authority);
    let [ca, other] = [&authority, &stranger].map(|authority| authority.file("ca.pem"));
    for url in [
        format!("redlocks://locks:se%25cret@{hosts}?ca={}", other.display()),
        format!("redlocks://locks:wrong@{hosts}?ca={}", ca.display()),
        format!("redlocks://{hosts}?ca={}", ca.display()),
    ] {
        let connecting = leasehold::connect(&url).into_future();
        let error = within_bound("the answer", connecting).await.expect_err(&url);
        let text = error.to_string();
        assert!(*error.kind() != ErrorKind::Invalid, "{url}: {text}");
        assert!(!text.contains("se%25cret") && !text.contains("se%cret"), "{text}");
    }
}
