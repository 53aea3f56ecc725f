//! TLS, with an authority of our own.

use std::path::Path;

use leasehold::ErrorKind;
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::{Authority, Redis};

use crate::client::{LONG, acquire, connect, connecting, granted, until_waiters};

/// A server with a certificate of this authority, and its TLS port.
fn server(authority: &Authority, wants_clients: &str) -> (Redis, u16) {
    authority.redis(wants_clients, &[]).expect("a Redis server with TLS starts")
}

fn url(port: u16, ca: &Path) -> String {
    format!("rediss://127.0.0.1:{port}?ca={}", ca.display())
}

async fn refused(url: String) -> leasehold::Error {
    let connected = within_bound("the answer", connecting(url).into_future()).await;
    connected.expect_err("the connection is refused")
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
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    // Nor do the authorities of the machine know it.
    refused(format!("rediss://127.0.0.1:{port}")).await;
}

/// Its certificate says 127.0.0.1, and nothing else.
#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "no");
    let ca = authority.file("ca.pem");
    refused(format!("rediss://localhost:{port}?ca={}", ca.display())).await;
}

#[tokio::test]
async fn a_server_may_want_to_know_its_clients() {
    let authority = Authority::new().unwrap();
    let (_server, port) = server(&authority, "yes");
    let url = url(port, &authority.file("ca.pem"));
    refused(url.clone()).await;
    let [cert, key] = ["client.pem", "client.key"].map(|name| authority.file(name));
    let locks = connect(format!("{url}&cert={}&key={}", cert.display(), key.display())).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
