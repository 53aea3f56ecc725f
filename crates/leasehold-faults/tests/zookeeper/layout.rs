//! Names as others count them, and what happens where two kinds meet.

use std::time::Duration;

use futures_util::future::join_all;
use leasehold::{ErrorKind, Severity};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::servers::Zookeeper;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::scene::{TTL, client, queue, raw};

/// A foreign client's node in the queue; its name.
async fn stand_in_queue(raw: &Client, prefix: &str) -> String {
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    let (_, sequence) = raw.create(prefix, b"", &ephemeral).await.unwrap();
    format!("{prefix}{sequence}")
}

/// Foreign nodes of the same layout hold the lock. Beside those of the other layout it is refused:
/// their clients do not count our nodes.
#[tokio::test]
async fn foreign_nodes_count_in_their_own_layout_and_refuse_the_other() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    let (kazoo, _) = client(&server.url("/mixed?session=3s")).await;
    let (curator, _) = client(&server.url("/mixed?session=3s&layout=curator")).await;
    kazoo.lock("job").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    // As Curator's protected creation and its older form name them, and as kazoo does.
    for (prefix, same, other, theirs) in [
        ("_c_00000000-0000-4000-8000-000000000000-lock-", &curator, &kazoo, "curator"),
        ("lock-", &curator, &kazoo, "curator"),
        ("00000000000040008000000000000000__lock__", &kazoo, &curator, "kazoo"),
        ("00000000000040008000000000000000__rlock__", &kazoo, &curator, "kazoo"),
    ] {
        let foreign = stand_in_queue(&raw, &format!("/mixed/job/{prefix}")).await;
        assert!(same.lock("job").ttl(TTL).try_acquire().await.unwrap().is_none());
        let info = same.inspect("job").await.unwrap();
        assert!(info.lease().is_some_and(|lease| lease.held_by.holder.is_none()));
        for patience in [None, Some(Duration::from_secs(60))] {
            let lock = other.lock("job").ttl(TTL);
            let error = match patience {
                None => lock.try_acquire().await.unwrap_err(),
                Some(patience) => lock.wait(patience).acquire().await.unwrap_err(),
            };
            assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
            let said = error.to_string();
            assert!(
                said.contains(&foreign) && said.contains(&format!("layout={theirs}")),
                "{said}"
            );
        }
        let findings = other.examine().await.unwrap();
        let nodes = format!("nodes of {theirs}");
        let mixed = findings.iter().find(|finding| finding.what.contains(&nodes));
        assert_eq!(mixed.expect("reported").severity, Severity::Unsafe);
        let alone = async || queue(&raw, "/mixed/job").await.len() == 1;
        eventually("only the foreign node is left", alone).await;
        raw.delete(&foreign, None).await.unwrap();
        let lease = other.lock("job").ttl(TTL).try_acquire().await.unwrap().expect("it is free");
        lease.release().await.unwrap();
    }
}

/// A client that already waits is not granted the lock either, and says so after its TTL.
#[tokio::test]
async fn a_waiter_gets_no_lock_beside_a_node_of_the_other_layout() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    let (holder, _) = client(&server.url("/mixed?session=3s")).await;
    let (waiter, _) = client(&server.url("/mixed?session=3s")).await;
    let lease = holder.lock("job").ttl(TTL).acquire().await.unwrap();
    let lock = waiter.lock("job").ttl(TTL);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let waits = async || holder.inspect("job").await.unwrap().waiters == 1;
    eventually("it waits", waits).await;
    let foreign = stand_in_queue(&raw, "/mixed/job/lock-").await;
    lease.release().await.unwrap();
    let error = within_bound("the refusal", waiting).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains(&foreign), "{error}");
    raw.delete(&foreign, None).await.unwrap();
    let lock = waiter.lock("job").ttl(TTL).wait(Duration::from_secs(10));
    lock.acquire().await.unwrap().release().await.unwrap();
}

/// Claims that travel together with a refused one get their locks.
#[tokio::test]
async fn one_refused_lock_does_not_refuse_the_rest_of_its_batch() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    let (locks, _) = client(&server.url("/mixed?session=3s")).await;
    locks.lock("job0").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    let foreign = stand_in_queue(&raw, "/mixed/job0/lock-").await;
    for round in 0..3 {
        let jobs = (0..6).map(|job| {
            let lock = locks.lock(format!("job{job}")).ttl(TTL);
            tokio::spawn(async move { lock.acquire().await })
        });
        for (job, acquired) in join_all(jobs.collect::<Vec<_>>()).await.into_iter().enumerate() {
            match acquired.unwrap() {
                Ok(lease) if job > 0 => lease.release().await.unwrap(),
                Err(error) if job == 0 => assert_eq!(*error.kind(), ErrorKind::Refused, "{error}"),
                other => panic!("job{job} in round {round}: {other:?}"),
            }
        }
    }
    let children = queue(&raw, "/mixed/job0").await;
    assert!(children.len() == 1 && foreign.ends_with(&children[0]), "{children:?}");
}

/// What others see of us.
#[tokio::test]
async fn our_nodes_have_the_names_that_others_count() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    for (layout, marker) in [("kazoo", "__lock__"), ("curator", "-lock-")] {
        let (locks, _) = client(&server.url(&format!("/{layout}?layout={layout}"))).await;
        let _lease = locks.lock("job").acquire().await.unwrap();
        let child = queue(&raw, &format!("/{layout}/job")).await.pop().unwrap();
        let (_, number) = child.rsplit_once(marker).expect(&child);
        assert!(number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit()), "{child}");
    }
}
