//! ZooKeeper under test: one server, or three.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::backend::zookeeper::ZookeeperStore;
use leasehold::clock::Clock;

use crate::servers::zookeeper::{Ensemble, Zookeeper};
use leasehold_conformance::fixture::{Opening, StoreUnderTest, Time};

/// Locks on servers of their own.
#[derive(Debug)]
pub struct ZookeeperUnderTest {
    url: String,
    _servers: Servers,
}

/// Kept for as long as the store is under test.
#[derive(Debug)]
enum Servers {
    One { _server: Zookeeper },
    Three { _servers: Ensemble },
}

impl ZookeeperUnderTest {
    /// On one server.
    pub fn alone() -> Self {
        let server = Zookeeper::start().expect("a server starts");
        // A session for the TTL of the cases is open before they begin.
        let url = server.url("/conformance?session=3s");
        Self { url, _servers: Servers::One { _server: server } }
    }

    /// On three.
    pub fn ensemble() -> Self {
        let servers = Ensemble::start(3).expect("an ensemble starts");
        let url = servers.url("/conformance?session=3s&tick=200ms");
        Self { url, _servers: Servers::Three { _servers: servers } }
    }
}

impl StoreUnderTest for ZookeeperUnderTest {
    fn open(&self, clock: Clock) -> Opening<'_> {
        Box::pin(async move {
            let store = ZookeeperStore::open(&self.url, clock).await.expect("it opens");
            store as Arc<dyn Backend>
        })
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn lag(&self) -> Duration {
        // The janitor is up to 200 ms late, and then asks.
        Duration::from_secs(1)
    }
}
