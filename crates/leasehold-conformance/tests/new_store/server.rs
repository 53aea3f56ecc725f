//! The server of the small store: it knows nothing of locks.

use std::collections::BTreeMap;
use std::sync::Arc;

use leasehold::clock::{Clock, Moment};
use leasehold::{Name, Result};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::store::Record;

/// Values by name, each with a version, a clock, and a bell. Many databases have as much: one item that
/// is read, and written if it still is what was read.
#[derive(Debug)]
pub struct Server {
    clock: Clock,
    values: Mutex<BTreeMap<String, (u64, Record)>>,
    written: Notify,
}

/// A value as it was read, and when, on the server's clock.
pub struct Read {
    pub version: u64,
    pub record: Record,
    pub now: Moment,
}

impl Server {
    pub fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self { clock, values: Mutex::default(), written: Notify::new() })
    }

    pub async fn get(&self, name: &Name) -> Result<Read> {
        let values = self.values.lock();
        let (version, record) = values.get(name.as_str()).cloned().unwrap_or_default();
        Ok(Read { version, record, now: self.clock.now() })
    }

    /// Whether it was written: not if somebody else wrote in between.
    pub async fn put_if(&self, name: &Name, version: u64, record: Record) -> Result<bool> {
        let mut values = self.values.lock();
        let value = values.entry(name.to_string()).or_default();
        let unchanged = value.0 == version;
        if unchanged {
            *value = (version + 1, record);
            self.written.notify_waiters();
        }
        Ok(unchanged)
    }

    /// Completes when something is written after this call.
    pub fn written(&self) -> Notified<'_> {
        self.written.notified()
    }

    pub async fn names(&self, prefix: &str) -> Result<Vec<Name>> {
        let values = self.values.lock();
        let names = values.keys().filter(|name| name.starts_with(prefix));
        names.map(|name| Ok(Name::new(name)?)).collect()
    }
}
