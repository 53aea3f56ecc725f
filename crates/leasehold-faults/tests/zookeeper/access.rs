//! Credentials, and who may touch the nodes.

use leasehold::ErrorKind;
use leasehold_faults::servers::Zookeeper;
use zookeeper_client::Error;

use crate::scene::{TTL, client, queue, raw};

/// ACLs are not inherited: every node must have its own.
#[tokio::test]
async fn with_a_user_nobody_else_may_delete_a_lock() {
    let server = Zookeeper::start().unwrap();
    let url = format!("zk://me:p%40ss@127.0.0.1:{}/safe/locks?session=3s", server.port());
    let (locks, _) = client(&url).await;
    let lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
    locks.force_release("job", "to have a record").await.unwrap();
    drop(lease);
    let lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
    let stranger = raw(server.addr()).await;
    let me = raw(server.addr()).await;
    me.auth("digest", b"me:p@ss").await.unwrap();
    let child = queue(&me, "/safe/locks/job").await.pop().expect("it is held");
    let node = format!("/safe/locks/job/{child}");
    for path in ["/safe", "/safe/locks", "/safe/locks/job", &node, "/safe/locks/%forced/job"] {
        let (acl, _) = me.get_acl(path).await.unwrap();
        assert_eq!(acl.len(), 1, "{path}: {acl:?}");
        assert!(acl[0].scheme() == "digest" && acl[0].id().starts_with("me:"), "{path}: {acl:?}");
    }
    assert_eq!(stranger.delete(&node, None).await, Err(Error::NoAuth));
    let wrong = format!("zk://me:wr0ng@127.0.0.1:{}/safe/locks?session=3s", server.port());
    for (url, said) in [
        (server.url("/safe/locks?session=3s"), "the URL has no user"),
        (wrong, "check the user and the password"),
    ] {
        let (others, _) = client(&url).await;
        let error = others.lock("job").ttl(TTL).try_acquire().await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unusable, "{error}");
        assert!(error.to_string().contains(said), "{error}");
        assert!(!format!("{error:?}").contains("wr0ng"), "{error:?}");
    }
    lease.release().await.unwrap();
}

/// Those who only look may, if the URL says so.
#[tokio::test]
async fn readers_may_look_if_they_are_let() {
    let server = Zookeeper::start().unwrap();
    let port = server.port();
    let url = format!("zk://me:secret@127.0.0.1:{port}/shown?session=3s&acl=creator-read");
    let (locks, _) = client(&url).await;
    let _lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
    let (others, _) = client(&server.url("/shown?session=3s")).await;
    assert!(others.inspect("job").await.unwrap().lease().is_some());
    let error = others.force_release("job", "not mine").await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unusable, "{error}");
}

/// An address where nobody listens is an error in bounded time, and tells no secret.
#[tokio::test]
async fn an_unreachable_server_is_an_error_without_secrets() {
    let port = leasehold_faults::servers::free_port();
    let error = leasehold::connect(format!("zk://me:secret@127.0.0.1:{port}/x")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    let shown = format!("{error} {error:?}");
    assert!(!shown.contains("secret"), "{shown}");
}
