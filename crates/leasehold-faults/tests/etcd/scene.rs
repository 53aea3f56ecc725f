//! A cluster, and clients on it.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::etcd::EtcdStore;
use leasehold::clock::Clock;
use leasehold::{Lock, Locks};
use leasehold_faults::servers::Etcd;

/// Where the locks are.
pub(crate) const PREFIX: &str = "locks";

/// A client and its store.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    pub(crate) store: Arc<EtcdStore>,
    pub(crate) locks: Locks,
}

impl Client {
    pub(crate) async fn on(cluster: &Etcd) -> Self {
        Self::at(&format!("{}/{PREFIX}", cluster.url())).await
    }

    pub(crate) async fn at(url: &str) -> Self {
        let store = EtcdStore::open(url, Clock::boot()).await.expect("the cluster answers");
        let locks = Locks::on(store.clone()).await.expect("inside a runtime");
        Self { store, locks }
    }

    /// A lock with a TTL that a busy machine keeps.
    pub(crate) fn lock(&self, name: &str) -> Lock {
        self.locks.lock(name).ttl(Duration::from_secs(4))
    }

    pub(crate) async fn is_free(&self, name: &str) -> bool {
        self.lock(name).try_acquire().await.is_ok_and(|lease| lease.is_some())
    }

    pub(crate) async fn waiters(&self, name: &str) -> usize {
        self.locks.inspect(name).await.unwrap().waiters
    }
}
