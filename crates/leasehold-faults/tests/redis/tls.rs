//! TLS, with an authority of our own.

use std::path::Path;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use leasehold::{Error, ErrorKind};
use leasehold_conformance::fixture::{eventually, within_bound};
use leasehold_faults::faults::proxy::{Proxy, Way};
use leasehold_faults::servers::{Authority, Redis};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use crate::client::{LONG, acquire, connect, connecting, granted, until_waiters};

/// A server with a certificate of this authority, and its TLS port.
fn server(authority: &Authority, wants_clients: &str) -> (Redis, u16) {
    authority.redis(wants_clients, &[]).expect("a Redis server with TLS starts")
}

fn url(port: u16, ca: &Path) -> String {
    format!("rediss://127.0.0.1:{port}?ca={}", ca.display())
}

async fn refused(url: String) -> Error {
    let connected = within_bound("the answer", connecting(url).into_future()).await;
    connected.expect_err("the connection is refused")
}

/// Nobody is there who can be trusted, and this is why.
fn says(error: &Error, why: &str) {
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error:?}");
    assert!(error.to_string().contains(why), "{error}");
}

#[tokio::test]
async fn with_the_right_authority_everything_works() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "no");
    let url = url(port, &authority.file("ca.pem"));
    let (holder, waiter) = (connect(url.clone()).await, connect(url).await);
    let lease = holder.lock("a").ttl(LONG).acquire().await.unwrap();
    let waiting = acquire(waiter.lock("a").ttl(LONG));
    until_waiters(&holder, "a", 1).await;
    let token = lease.token();
    lease.release().await.unwrap();
    let next = granted(waiting).await;
    assert!(next.token() > token);
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_server_that_the_authority_did_not_sign_is_refused() {
    let (authority, other) = (Authority::new().unwrap(), Authority::new().unwrap());
    let (_server, port) = server(&authority, "no");
    let error = refused(url(port, &other.file("ca.pem"))).await;
    says(&error, "is signed by nobody we trust: name a file of its authority with ca=");
    // Nor do the authorities of the machine know it.
    refused(format!("rediss://127.0.0.1:{port}")).await;
}

/// Its certificate says 127.0.0.1, and nothing else.
#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "no");
    let ca = authority.file("ca.pem");
    let error = refused(format!("rediss://localhost:{port}?ca={}", ca.display())).await;
    says(&error, "is for another name");
    let error = refused(format!("rediss://{}:{port}?ca={}", "x".repeat(300), ca.display())).await;
    assert!(error.to_string().contains("no certificate can have its name"), "{error}");
}

#[tokio::test]
async fn a_certificate_that_has_expired_is_refused() {
    let authority = Authority::new().unwrap();
    let [cert, key] = ["expired.pem", "expired.key"].map(|name| authority.file(name));
    let [cert, key] = [&cert, &key].map(|path| path.to_str().unwrap());
    let options = ["--tls-cert-file", cert, "--tls-key-file", key];
    let (_server, port) = authority.redis("no", &options).unwrap();
    says(&refused(url(port, &authority.file("ca.pem"))).await, "is not valid now");
}

#[tokio::test]
async fn a_server_may_want_to_know_its_clients() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "yes");
    let url = url(port, &authority.file("ca.pem"));
    says(&refused(url.clone()).await, "wants a certificate of its clients");
    let [cert, key] = ["client.pem", "client.key"].map(|name| authority.file(name));
    let locks = connect(format!("{url}&cert={}&key={}", cert.display(), key.display())).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}

/// One goes away after the first words, one speaks no TLS, and one says nothing.
#[tokio::test]
async fn a_peer_that_does_not_end_the_handshake_is_an_error_in_bounded_time() {
    const SOON: Duration = Duration::from_millis(300);
    let authority = Authority::new().unwrap();
    for (answer, why) in [
        (Some(""), "cannot connect to"),
        (Some("-ERR unknown command\r\n"), "does not speak TLS"),
        (None, "did not answer within 300ms"),
    ] {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let peer = tokio::spawn(async move {
            loop {
                let (mut stream, _) = listener.accept().await.unwrap();
                let _ = stream.read(&mut [0; 4096]).await.unwrap();
                match answer {
                    Some(answer) => stream.write_all(answer.as_bytes()).await.unwrap(),
                    None => std::future::pending().await,
                }
            }
        });
        let began = Instant::now();
        let url = format!("{}&timeout=300ms", url(port, &authority.file("ca.pem")));
        says(&refused(url).await, why);
        assert!(answer.is_some() || began.elapsed() >= SOON, "{why}");
        peer.abort();
    }
}

/// A mebibyte there and back, and then many small requests in order.
#[tokio::test]
async fn large_requests_and_many_at_once_arrive_whole() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "no");
    let url = url(port, &authority.file("ca.pem"));
    for size in [70_000, 1 << 20] {
        let label = "x".repeat(size);
        let locks = leasehold::connect(&url).label(&label).await.unwrap();
        let name = format!("large{size}");
        let lease = locks.lock(&name).ttl(LONG).acquire().await.unwrap();
        let seen = locks.inspect(&name).await.unwrap();
        let holder = seen.lease().unwrap().held_by.holder.as_ref().expect("its holder is known");
        assert!(holder.label == label, "{size}");
        lease.release().await.unwrap();
    }
    let locks = connect(&url).await;
    let names: Vec<_> = (0..500).map(|number| format!("many{number}")).collect();
    let leases = join_all(names.iter().map(async |name| {
        let lease = locks.lock(name).ttl(LONG).acquire().await.unwrap();
        assert_eq!(lease.verify().await.unwrap(), lease.token());
        lease
    }));
    for (lease, name) in leases.await.into_iter().zip(&names) {
        assert_eq!(lease.name().to_string(), *name);
        lease.release().await.unwrap();
    }
    assert!(locks.list("many").await.unwrap().is_empty());
}

/// The network fails in the middle of it all: errors in bounded time, and everything goes on when
/// it heals.
#[tokio::test]
async fn a_partition_heals_over_tls() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "no");
    let proxy = Proxy::to(([127, 0, 0, 1], port).into()).await.unwrap();
    let url = format!("{}&timeout=300ms", url(proxy.addr().port(), &authority.file("ca.pem")));
    let locks = connecting(url).request_timeout(Duration::from_millis(500)).await.unwrap();
    let lease = locks.lock("a").ttl(LONG).acquire().await.unwrap();
    for way in [Way::Requests, Way::Replies] {
        proxy.cut(way);
        let error = within_bound("an error", locks.lock("b").try_acquire()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
        proxy.heal();
        let back = async || locks.lock("c").try_acquire().await.is_ok();
        eventually("the client is back", back).await;
        assert_eq!(lease.verify().await.unwrap(), lease.token());
    }
}
