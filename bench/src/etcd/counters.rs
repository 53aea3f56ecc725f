//! What the server counted, by its own metrics.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::ops::{AddAssign, Sub};

use anyhow::{Context, Result};

/// Its counters, or how much they grew.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counters {
    /// Events sent to watches.
    pub(super) events: f64,
    /// Entries that were agreed upon and applied: each is a request that writes.
    pub(super) proposals: f64,
}

impl Counters {
    pub(super) fn read(server: SocketAddr) -> Result<Self> {
        let mut stream = TcpStream::connect(server)?;
        stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let counter = |name: &str| -> Result<f64> {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            Ok(value.with_context(|| format!("etcd counts {name}"))?.trim().parse()?)
        };
        Ok(Self {
            events: counter("etcd_debugging_mvcc_events_total")?,
            proposals: counter("etcd_server_proposals_applied_total")?,
        })
    }
}

impl Sub for Counters {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self { events: self.events - before.events, proposals: self.proposals - before.proposals }
    }
}

impl AddAssign for Counters {
    fn add_assign(&mut self, more: Self) {
        self.events += more.events;
        self.proposals += more.proposals;
    }
}
