//! What the tests share: clients with and without a proxy, and a look past them at the nodes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::zookeeper::ZookeeperStore;
use leasehold::clock::Clock;
use leasehold::{EventKind, Events, Locks};
use leasehold_conformance::fixture::next_event;
use zookeeper_client::{Client, Error};

/// The TTL of leases in these tests: long enough for a busy machine to renew in time.
pub(crate) const TTL: Duration = Duration::from_secs(3);

/// A client of the locks behind this URL, and its store.
pub(crate) async fn client(url: &str) -> (Locks, Arc<ZookeeperStore>) {
    let store = ZookeeperStore::open(url, Clock::boot()).await.expect("it opens");
    let locks = Locks::on(store.clone()).label("case").await.expect("it connects");
    (locks, store)
}

/// The URL of locks at this address.
pub(crate) fn url_at(address: SocketAddr, rest: &str) -> String {
    format!("zk://{address}{rest}")
}

/// A client of the server itself, which sees what is really there.
pub(crate) async fn raw(address: SocketAddr) -> Client {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(20));
    connector.connect(&address.to_string()).await.expect("it connects")
}

/// The nodes in the queue of a lock, as the leader knows them.
pub(crate) async fn queue(raw: &Client, lock: &str) -> Vec<String> {
    raw.sync(lock).await.expect("it answers");
    match raw.list_children(lock).await {
        Ok(children) => children,
        Err(Error::NoNode) => Vec::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Waits until a lease of this client is lost.
pub(crate) async fn until_lost(events: &mut Events) {
    next_event(events, |kind| matches!(kind, EventKind::Lost(_))).await;
}
