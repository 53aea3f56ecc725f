//! What `examine` finds, and TTLs that a server does not keep.

use std::time::Duration;

use leasehold::{ErrorKind, Finding, Severity};
use leasehold_faults::servers::Zookeeper;
use leasehold_faults::servers::zookeeper::Ensemble;

use crate::scene::{client, queue, raw};

fn found<'a>(findings: &'a [Finding], words: &str) -> &'a Finding {
    let found = findings.iter().find(|finding| finding.what.contains(words));
    found.unwrap_or_else(|| panic!("{words:?} in {findings:#?}"))
}

#[tokio::test]
async fn a_server_on_its_own_is_described() {
    let server = Zookeeper::start().unwrap();
    let (locks, _) = client(&server.url("/doctor")).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(found(&findings, "standalone (version 3.").severity, Severity::Fine);
    assert_eq!(found(&findings, "on its own").severity, Severity::Warning);
    assert_eq!(found(&findings, "made for everybody").severity, Severity::Warning);
    assert_eq!(found(&findings, "TTLs from 400ms to 120s").severity, Severity::Fine);
    assert_eq!(found(&findings, "tick is 200ms").severity, Severity::Fine);
    assert_eq!(found(&findings, "names are kazoo's").severity, Severity::Fine);
}

/// A TTL that the server would change is refused, not silently another one.
#[tokio::test]
async fn a_clamped_ttl_is_reported_and_never_used() {
    let bounds = "minSessionTimeout=2000\nmaxSessionTimeout=20000\n4lw.commands.whitelist=srvr\n";
    let server = Zookeeper::start_with(bounds, &[]).unwrap();
    let (locks, _) = client(&server.url("/clamped")).await;
    for ttl in [Duration::from_secs(1), Duration::from_secs(30)] {
        let error = locks.lock("job").ttl(ttl).acquire().await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.to_string().contains("TTL"), "{error}");
    }
    assert!(queue(&raw(server.addr()).await, "/clamped/job").await.is_empty());
    let fits = locks.lock("job").ttl(Duration::from_secs(5)).acquire().await.unwrap();
    fits.release().await.unwrap();
    // It may not be asked for its configuration: the bounds are those that it granted.
    let findings = locks.examine().await.unwrap();
    assert_eq!(found(&findings, " is standalone ").severity, Severity::Fine);
    assert_eq!(found(&findings, "TTLs from 2s to 20s").severity, Severity::Fine);
    assert_eq!(found(&findings, "the default TTL, 30s, is not").severity, Severity::Warning);
}

#[tokio::test]
async fn an_ensemble_is_described_also_while_a_server_is_away() {
    let mut ensemble = Ensemble::start(3).unwrap();
    let (locks, _) = client(&ensemble.url("/doctor?tick=200ms")).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(found(&findings, "3 servers vote").severity, Severity::Fine);
    found(&findings, " is leader ");
    found(&findings, " is follower ");
    let leader = ensemble.leader().unwrap();
    let follower = (leader + 1) % 3;
    ensemble.servers[follower].kill();
    let (locks, _) = client(&ensemble.url("/doctor?tick=200ms")).await;
    let findings = locks.examine().await.unwrap();
    assert_eq!(found(&findings, "does not answer").severity, Severity::Warning);
}
