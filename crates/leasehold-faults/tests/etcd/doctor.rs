//! What `doctor` finds.

use leasehold::{ErrorKind, Finding, Severity};
use leasehold_faults::servers::Etcd;

use crate::scene::Client;

fn find<'a>(findings: &'a [Finding], what: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.what.contains(what));
    found.unwrap_or_else(|| panic!("nothing about {what:?} in {findings:#?}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sound_cluster_and_one_without_a_member() {
    let mut cluster = Etcd::start(3, &[]).unwrap();
    let client = Client::on(&cluster).await;
    let findings = client.locks.examine().await.unwrap();
    assert_eq!(find(&findings, "3 voting members").severity, Severity::Fine);
    // Which versions are unsafe is a matter of unit tests; Debian's 3.4.23 is one of them.
    find(&findings, "etcd 3.");
    find(&findings, "the leader answers within");
    let others = findings.iter().filter(|finding| !finding.what.starts_with("etcd 3."));
    assert!(others.clone().all(|finding| finding.severity < Severity::Unsafe), "{findings:#?}");
    let few = Client::at(&format!("etcd://{}/locks", cluster.addr(1))).await;
    let findings = few.locks.examine().await.unwrap();
    assert_eq!(find(&findings, "names 1 of 3 members").severity, Severity::Warning);
    cluster.kill(0);
    cluster.leader().unwrap();
    let findings = few.locks.examine().await.unwrap();
    assert_eq!(find(&findings, "3 voting members").severity, Severity::Fine);
    let findings = Client::on(&cluster).await.locks.examine().await.unwrap();
    assert_eq!(find(&findings, "does not answer").severity, Severity::Warning);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_member_without_space() {
    let cluster = Etcd::start(1, &["--quota-backend-bytes", "1000000"]).unwrap();
    let client = Client::on(&cluster).await;
    let findings = client.locks.examine().await.unwrap();
    assert_eq!(find(&findings, "1 voting member").severity, Severity::Warning);
    let big = "x".repeat(100_000);
    let full = (0..100).any(|number| cluster.ctl(&["put", &format!("k{number}"), &big]).is_err());
    assert!(full, "the quota is reached");
    let findings = client.locks.examine().await.unwrap();
    assert_eq!(find(&findings, "NOSPACE").severity, Severity::Warning);
    let error = client.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("NOSPACE"), "says what to do: {error}");
}
