//! What is found about a server's set-up.

use leasehold::{ErrorKind, Finding, Severity};
use leasehold_faults::servers::Redis;

use crate::client::{client, connect, connecting, server};

fn about<'a>(findings: &'a [Finding], word: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.what.contains(word));
    found.unwrap_or_else(|| panic!("nothing about {word} in {findings:#?}"))
}

/// FAULTS 9: refused at start, unless the URL says that it is meant.
#[tokio::test]
async fn an_evicting_server_is_refused_unless_allowed() {
    for policy in ["allkeys-lru", "volatile-ttl"] {
        let options = ["--maxmemory", "8mb", "--maxmemory-policy", policy];
        let server = Redis::start(&options).unwrap();
        let error = connecting(server.url()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        let said = error.to_string();
        assert!(said.contains(policy) && said.contains("noeviction"), "{said}");
        let locks = connect(format!("{}?allow-unsafe", server.url())).await;
        locks.lock("a").acquire().await.unwrap().release().await.unwrap();
        let findings = locks.examine().await.unwrap();
        assert_eq!(about(&findings, policy).severity, Severity::Unsafe);
    }
}

#[tokio::test]
async fn keys_that_were_evicted_are_found() {
    let server = server();
    let locks = client(&server).await;
    let before = locks.examine().await.unwrap();
    assert_eq!(about(&before, "no key was evicted").severity, Severity::Fine);
    server.cli(&["config", "set", "maxmemory-policy", "allkeys-random"]).unwrap();
    let fill = "for i=1,2000 do redis.call('set', 'x'..i, string.rep('x', 1000)) end";
    server.cli(&["eval", fill, "0"]).unwrap();
    server.cli(&["config", "set", "maxmemory", "1mb"]).unwrap();
    server.cli(&["set", "one", "more"]).unwrap();
    let after = locks.examine().await.unwrap();
    assert_eq!(about(&after, "keys were evicted").severity, Severity::Unsafe);
}

#[tokio::test]
async fn persistence_is_looked_at() {
    let server = server();
    let locks = client(&server).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(about(&findings, "nothing is kept on disk").severity, Severity::Warning);
    assert_eq!(about(&findings, "it is a master").severity, Severity::Fine);
    assert_eq!(about(&findings, "its clock differs").severity, Severity::Fine);
    assert_eq!(about(&findings, "Redis").severity, Severity::Fine);
    let options = ["--appendonly", "yes", "--appendfsync", "always"];
    let durable = Redis::start(&options).unwrap();
    let findings = client(&durable).await.examine().await.unwrap();
    assert_eq!(about(&findings, "every write is on disk").severity, Severity::Fine);
    durable.cli(&["config", "set", "appendfsync", "everysec"]).unwrap();
    let findings = client(&durable).await.examine().await.unwrap();
    assert_eq!(about(&findings, "everysec").severity, Severity::Warning);
}

/// Replicas: writes are refused there, and a master that has some is told what to set.
#[tokio::test]
async fn replicas_are_looked_at() {
    let master = server();
    let port = master.port().to_string();
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let error = connecting(replica.url()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    let locks = client(&master).await;
    let linked = async || master.cli(&["info", "replication"]).unwrap().contains("state=online");
    leasehold_conformance::fixture::eventually("the replica is there", linked).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(about(&findings, "min-replicas-to-write is 0").severity, Severity::Warning);
    master.cli(&["config", "set", "min-replicas-to-write", "1"]).unwrap();
    let findings = locks.examine().await.unwrap();
    assert_eq!(about(&findings, "1 replicas, of which 1").severity, Severity::Fine);
}

/// A lease that too few replicas have is given back, and is an error.
#[tokio::test]
async fn a_lease_that_too_few_replicas_have_is_no_lease() {
    let master = server();
    let url = format!("{}?wait-replicas=1&timeout=1s", master.url());
    let locks = connect(&url).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(about(&findings, "wait-replicas is 1").severity, Severity::Unsafe);
    let error = locks.lock("a").try_acquire().await.unwrap_err();
    assert!(error.to_string().contains("replicas"), "{error}");
    assert!(locks.list("").await.unwrap().is_empty(), "it was given back");
    let port = master.port().to_string();
    let _replica = Redis::start(&["--replicaof", "127.0.0.1", &port]).unwrap();
    let linked = async || locks.lock("a").try_acquire().await.is_ok_and(|lease| lease.is_some());
    leasehold_conformance::fixture::eventually("the replica has it", linked).await;
    let second = connect(&url).await;
    let lease = locks.lock("b").acquire().await.unwrap();
    let waiting = crate::client::acquire(second.lock("b"));
    crate::client::until_waiters(&locks, "b", 1).await;
    lease.release().await.unwrap();
    let next = crate::client::granted(waiting).await;
    assert_eq!(next.verify().await.unwrap(), next.token());
}
