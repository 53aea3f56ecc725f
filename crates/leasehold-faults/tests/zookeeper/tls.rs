//! TLS, with certificates of the test's own.

use std::fs;

use leasehold::ErrorKind;
use leasehold_faults::servers::{Zookeeper, free_port};
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use tempfile::TempDir;

use crate::scene::{TTL, client};

/// A certificate authority, and a certificate for this machine.
struct Certificates {
    folder: TempDir,
}

impl Certificates {
    fn new() -> Self {
        let folder = TempDir::new().unwrap();
        let ca_key = KeyPair::generate().unwrap();
        let mut ca = CertificateParams::new(Vec::new()).unwrap();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca_cert = ca.self_signed(&ca_key).unwrap();
        let issuer = Issuer::new(ca, ca_key);
        let key = KeyPair::generate().unwrap();
        let names = vec!["localhost".to_owned(), "127.0.0.1".to_owned()];
        let cert = CertificateParams::new(names).unwrap().signed_by(&key, &issuer).unwrap();
        let write = |name: &str, text: String| fs::write(folder.path().join(name), text).unwrap();
        write("ca.pem", ca_cert.pem());
        write("server.pem", format!("{}{}", key.serialize_pem(), cert.pem()));
        Self { folder }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }
}

/// Two providers of cryptography are linked in: nothing panics for want of a choice.
#[tokio::test]
async fn locks_work_over_tls_and_a_stranger_is_not_trusted() {
    let certificates = Certificates::new();
    let port = free_port();
    let config = format!(
        "secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\nssl.clientAuth=none\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.type=PEM\nssl.keyStore.location={}\n\
         ssl.trustStore.type=PEM\nssl.trustStore.location={}\n",
        certificates.path("server.pem"),
        certificates.path("ca.pem"),
    );
    let server = Zookeeper::start_with(&config, &[]).unwrap();
    let url = |ca: &str| format!("zks://127.0.0.1:{port}/tls?session=3s&ca={ca}");
    let (locks, _) = client(&url(&certificates.path("ca.pem"))).await;
    let lease = locks.lock("job").ttl(TTL).acquire().await.unwrap();
    let (plain, _) = client(&server.url("/tls?session=3s")).await;
    assert!(plain.lock("job").ttl(TTL).try_acquire().await.unwrap().is_none());
    lease.release().await.unwrap();
    locks.examine().await.unwrap();
    let others = Certificates::new();
    let error = leasehold::connect(url(&others.path("ca.pem"))).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    let error = leasehold::connect(url("/no/such/file")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
}
