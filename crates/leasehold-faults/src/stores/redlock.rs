//! Redlock under test.

use std::sync::Arc;
use std::time::Duration;

use leasehold::backend::Backend;
use leasehold::backend::redlock::RedlockStore;
use leasehold::clock::Clock;

use crate::servers;
use leasehold_conformance::fixture::{Opening, StoreUnderTest, Time};

/// A store behind nodes that live as long as it does.
#[derive(Debug)]
pub struct Redlock {
    /// The nodes.
    pub servers: servers::Redlock,
}

impl Redlock {
    /// So many nodes with these options.
    ///
    /// # Panics
    ///
    /// When one of them does not start.
    pub fn start(count: usize, options: &[&str]) -> Self {
        Self { servers: servers::Redlock::start(count, options).expect("Redis servers start") }
    }
}

impl StoreUnderTest for Redlock {
    fn open(&self, clock: Clock) -> Opening<'_> {
        Box::pin(async move {
            let store = RedlockStore::open(&self.servers.url(), clock).await;
            store.expect("the store opens") as Arc<dyn Backend>
        })
    }

    fn time(&self) -> Time {
        Time::Real
    }

    fn lag(&self) -> Duration {
        // Redis lets a key live for up to a millisecond more; the rest is for a busy machine.
        Duration::from_millis(200)
    }
}
