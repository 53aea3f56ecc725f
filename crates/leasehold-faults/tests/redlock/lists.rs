//! Which nodes belong together.

use leasehold::ErrorKind;
use leasehold::backend::redlock::{NodeVerdict, NodeVerdicts};
use leasehold_faults::servers::Redlock;

use crate::scene::{client, connect, marker, nodes};

fn url(nodes: &Redlock, places: &[usize]) -> String {
    let hosts: Vec<_> = places.iter().map(|at| nodes.nodes[*at].addr().to_string()).collect();
    format!("redlock://{}", hosts.join(","))
}

/// FAULTS 12.
#[tokio::test]
async fn clients_with_different_lists_are_refused() {
    let four = nodes(4, &[]);
    let locks = connect(url(&four, &[0, 1, 2])).await;
    let lease = locks.lock("a").acquire().await.unwrap();
    for other in [&[1, 2, 3][..], &[0, 1, 2, 3], &[2, 3, 0]] {
        let error = leasehold::connect(url(&four, other)).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
        let source = std::error::Error::source(&error).expect("what each node said");
        let NodeVerdicts(said) = source.downcast_ref().expect("what each node said");
        assert!(said.iter().any(|(_, said)| *said == NodeVerdict::OtherList), "{error}");
    }
    assert_eq!(marker(&four.nodes[3]), "", "nothing was written");
    lease.verify().await.unwrap();
    // The order is no difference.
    let same = connect(url(&four, &[2, 0, 1])).await;
    assert!(same.lock("a").try_acquire().await.unwrap().is_none());
}

/// Where the way to the nodes differs, the list has a name.
#[tokio::test]
async fn a_named_list_is_the_same_under_other_addresses() {
    let three = nodes(3, &[]);
    let named = format!("{}?list=eu", three.url());
    let locks = connect(&named).await;
    let _lease = locks.lock("a").acquire().await.unwrap();
    let other = connect(named.replace("127.0.0.1", "localhost")).await;
    assert!(other.lock("a").try_acquire().await.unwrap().is_none());
    let error = leasehold::connect(three.url()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
}

#[tokio::test]
async fn what_cannot_work_is_refused_at_once() {
    for url in [
        "redlock://u:hush@a",
        "redlock://u:hush@a,b",
        "redlock://u:hush@a,b,a",
        "redlock://u:hush@a,b,c?wait-replicas=1",
        "redlock://u:hush@a,b,c?nonsense=1",
        "redlock+cluster://u:hush@a,b,c",
    ] {
        let error = leasehold::connect(url).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{url}: {error}");
        assert!(!format!("{error} {error:?}").contains("hush"), "{error:?}");
    }
}

/// An even number works, and doctor advises against it.
#[tokio::test]
async fn four_nodes_work() {
    let four = nodes(4, &[]);
    let locks = client(&four).await;
    let lease = locks.lock("a").acquire().await.unwrap();
    let findings = locks.examine().await.unwrap();
    assert!(findings.iter().any(|finding| finding.advice.contains("an even number")));
    lease.release().await.unwrap();
}
