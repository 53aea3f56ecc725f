//! TLS, with an authority of our own.

use std::path::{Path, PathBuf};
use std::process::Command;

use leasehold::ErrorKind;
use leasehold_testkit::servers::{Redis, free_port};
use leasehold_testkit::world::within_bound;
use tempfile::TempDir;

use crate::client::{LONG, acquire, connect, connecting, granted, until_waiters};

/// An authority and what it signed, in files.
struct Authority(TempDir);

impl Authority {
    fn new() -> Self {
        let authority = Self(TempDir::new().unwrap());
        let subject = ["-subj", "/CN=an authority of this test", "-days", "2"];
        authority.openssl(&[&KEY[..], &["-x509", "-keyout", "ca.key", "-out", "ca.pem"], &subject]);
        authority.sign("server", "subjectAltName=IP:127.0.0.1");
        authority.sign("client", "subjectAltName=DNS:client");
        authority
    }

    /// A key and its certificate: `<name>.key`, `<name>.pem`.
    fn sign(&self, name: &str, extension: &str) {
        let [key, request, signed] = ["key", "csr", "pem"].map(|end| format!("{name}.{end}"));
        let subject = format!("/CN={name}");
        self.openssl(&[&KEY[..], &["-keyout", &key, "-out", &request, "-subj", &subject]]);
        std::fs::write(self.0.path().join("extension"), extension).unwrap();
        let by = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
        let with = ["-extfile", "extension"];
        self.openssl(&[&["x509", "-req", "-in", &request, "-out", &signed], &by[..], &with]);
    }

    fn openssl(&self, words: &[&[&str]]) {
        let mut command = Command::new("openssl");
        let output = command.args(words.concat()).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

const KEY: [&str; 6] = ["req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];

/// A server with a certificate of this authority, and its TLS port.
fn server(authority: &Authority, wants_clients: &str) -> (Redis, u16) {
    let port = free_port();
    let files = ["server.pem", "server.key", "ca.pem"]
        .map(|name| authority.file(name).display().to_string());
    let [certificate, key, ca] = &files;
    let server = Redis::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        certificate,
        "--tls-key-file",
        key,
        "--tls-ca-cert-file",
        ca,
        "--tls-auth-clients",
        wants_clients,
    ]);
    (server.expect("a Redis server with TLS starts"), port)
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
    let authority = Authority::new();
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
    let (authority, other) = (Authority::new(), Authority::new());
    let (_server, port) = server(&authority, "no");
    let error = refused(url(port, &other.file("ca.pem"))).await;
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    // Nor do the authorities of the machine know it.
    refused(format!("rediss://127.0.0.1:{port}")).await;
}

/// Its certificate says 127.0.0.1, and nothing else.
#[tokio::test]
async fn a_certificate_for_another_name_is_refused() {
    let authority = Authority::new();
    let (_server, port) = server(&authority, "no");
    let ca = authority.file("ca.pem");
    refused(format!("rediss://localhost:{port}?ca={}", ca.display())).await;
}

#[tokio::test]
async fn a_server_may_want_to_know_its_clients() {
    let authority = Authority::new();
    let (_server, port) = server(&authority, "yes");
    let url = url(port, &authority.file("ca.pem"));
    refused(url.clone()).await;
    let [cert, key] = ["client.pem", "client.key"].map(|name| authority.file(name));
    let locks = connect(format!("{url}&cert={}&key={}", cert.display(), key.display())).await;
    locks.lock("a").acquire().await.unwrap().release().await.unwrap();
}
