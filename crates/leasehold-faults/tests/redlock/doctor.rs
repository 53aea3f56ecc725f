//! What `doctor` finds.

use leasehold::Severity;
use leasehold_conformance::fixture::eventually;

use crate::scene::{LONG, client, nodes};

#[tokio::test]
async fn doctor_tells_of_every_node() {
    let mut three = nodes(3, &["--appendonly", "yes", "--appendfsync", "always"]);
    let locks = client(&three).await;
    locks.lock("a").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let findings = locks.examine().await.unwrap();
    assert!(findings.iter().all(|finding| finding.severity == Severity::Fine), "{findings:#?}");
    let votes = findings.iter().filter(|finding| finding.what.contains("it votes (epoch 0"));
    assert_eq!(votes.count(), 3);
    // One is gone, one came back empty.
    let gone = three.nodes[2].addr().to_string();
    let empty = three.nodes[1].addr().to_string();
    three.nodes[1].cli(&["flushall"]).unwrap();
    three.nodes[2].kill();
    let told = async || {
        let findings = locks.examine().await.unwrap();
        let of = |node: &str, words: &str| {
            findings.iter().any(|finding| {
                finding.severity != Severity::Fine
                    && finding.what.starts_with(node)
                    && finding.what.contains(words)
            })
        };
        of(&gone, "not reached") && of(&empty, "no marker")
    };
    eventually("both are told of", told).await;
    let findings = locks.examine().await.unwrap();
    let unsafe_ones = findings.iter().filter(|finding| finding.severity == Severity::Unsafe);
    assert!(unsafe_ones.count() >= 2, "{findings:#?}");
}
