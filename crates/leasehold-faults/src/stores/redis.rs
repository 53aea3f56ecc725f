//! Redis under test.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::backend::redis::RedisStore;
use leasehold::clock::Clock;

use crate::servers;
use leasehold_conformance::fixture::{Opening, StoreUnderTest, Time};

/// A store behind servers that live as long as it does.
#[derive(Debug)]
pub struct Redis<S> {
    url: String,
    /// The servers.
    pub servers: S,
}

impl Redis<servers::Redis> {
    /// One server with these options.
    ///
    /// # Panics
    ///
    /// When it does not start.
    pub fn single(options: &[&str]) -> Self {
        let server = servers::Redis::start(options).expect("a Redis server starts");
        Self::on(server.url(), server)
    }
}

impl Redis<servers::RedisSentinel> {
    /// A master and its replica, found through sentinels.
    ///
    /// # Panics
    ///
    /// When one of them does not start.
    pub fn sentinel() -> Self {
        let servers = servers::RedisSentinel::start(&[]).expect("sentinels start");
        Self::on(servers.url(), servers)
    }
}

impl Redis<servers::RedisCluster> {
    /// A cluster.
    ///
    /// # Panics
    ///
    /// When a node does not start.
    pub fn cluster() -> Self {
        let servers = servers::RedisCluster::start(&[]).expect("a cluster starts");
        Self::on(servers.url(), servers)
    }
}

impl<S> Redis<S> {
    /// The store behind this URL, which these servers keep.
    pub fn on(url: String, servers: S) -> Self {
        Self { url, servers }
    }
}

impl<S: std::fmt::Debug + Send + Sync> StoreUnderTest for Redis<S> {
    fn open(&self, clock: Clock) -> Opening<'_> {
        Box::pin(async move {
            let store = RedisStore::open(&self.url, clock).await.expect("the store opens");
            store as Arc<dyn Backend>
        })
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn lag(&self) -> Duration {
        // Redis lets a key live for up to a millisecond more; the rest is for a busy machine.
        Duration::from_millis(100)
    }
}
