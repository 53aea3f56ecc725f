//! Names as others count them, and what happens where two kinds meet.

use leasehold::backend::Severity;
use leasehold_testkit::servers::Zookeeper;
use zookeeper_client::{Acls, CreateMode};

use crate::scene::{TTL, client, line, raw};

/// Foreign nodes of the same layout hold the lock; those of the other layout are reported.
#[tokio::test]
async fn foreign_nodes_count_in_their_own_layout() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    let (kazoo, _) = client(&server.url("/mixed?session=3s")).await;
    let (curator, _) = client(&server.url("/mixed?session=3s&layout=curator")).await;
    kazoo.lock("job").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
    let ephemeral = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
    // As Curator's protected creation and its older form name them.
    for prefix in ["/mixed/job/_c_00000000-0000-4000-8000-000000000000-lock-", "/mixed/job/lock-"] {
        let (_, sequence) = raw.create(prefix, b"", &ephemeral).await.unwrap();
        assert!(curator.lock("job").ttl(TTL).try_acquire().await.unwrap().is_none());
        let info = curator.inspect("job").await.unwrap();
        assert!(info.lease.is_some_and(|lease| lease.held_by.holder.is_none()));
        let lease = kazoo.lock("job").ttl(TTL).try_acquire().await.unwrap().expect("not kazoo's");
        let findings = kazoo.examine().await.unwrap();
        let mixed = findings.iter().find(|finding| finding.what.contains("nodes of curator"));
        assert_eq!(mixed.expect("reported").severity, Severity::Unsafe);
        lease.release().await.unwrap();
        raw.delete(&format!("{prefix}{sequence}"), None).await.unwrap();
    }
    let prefix = "/mixed/job/00000000000040008000000000000000__lock__";
    raw.create(prefix, b"", &ephemeral).await.unwrap();
    assert!(kazoo.lock("job").ttl(TTL).try_acquire().await.unwrap().is_none());
    assert!(curator.lock("job").ttl(TTL).try_acquire().await.unwrap().is_some());
}

/// What others see of us.
#[tokio::test]
async fn our_nodes_have_the_names_that_others_count() {
    let server = Zookeeper::start().unwrap();
    let raw = raw(server.addr()).await;
    for (layout, marker) in [("kazoo", "__lock__"), ("curator", "-lock-")] {
        let (locks, _) = client(&server.url(&format!("/{layout}?layout={layout}"))).await;
        let _lease = locks.lock("job").acquire().await.unwrap();
        let child = line(&raw, &format!("/{layout}/job")).await.pop().unwrap();
        let (_, number) = child.rsplit_once(marker).expect(&child);
        assert!(number.len() == 10 && number.bytes().all(|byte| byte.is_ascii_digit()), "{child}");
    }
}
