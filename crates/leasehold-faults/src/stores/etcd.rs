//! etcd, with one member or three.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::backend::etcd::EtcdStore;
use leasehold::clock::Clock;

use crate::servers::Etcd;
use leasehold_conformance::fixture::{Opening, StoreUnderTest, Time};

/// A cluster and its URL.
#[derive(Debug)]
pub struct EtcdUnderTest {
    /// The cluster.
    pub cluster: Etcd,
    url: String,
}

impl EtcdUnderTest {
    /// A cluster of this many members.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn start(members: usize) -> Self {
        let cluster = Etcd::start(members, &[]).expect("etcd starts");
        let url = format!("{}/conformance", cluster.url());
        Self { cluster, url }
    }
}

impl StoreUnderTest for EtcdUnderTest {
    fn open(&self, clock: Clock) -> Opening<'_> {
        Box::pin(async move {
            let store = EtcdStore::open(&self.url, clock).await.expect("the cluster answers");
            store as Arc<dyn Backend>
        })
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn lag(&self) -> Duration {
        // The janitor looks every 200 ms, and has a request to send.
        Duration::from_secs(1)
    }
}
