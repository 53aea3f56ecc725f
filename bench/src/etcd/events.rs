//! How many events the server has sent to watches, by its own count.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};

use anyhow::{Context, Result};

/// The metric that counts them.
const METRIC: &str = "etcd_debugging_mvcc_events_total ";

pub(super) fn sent(server: SocketAddr) -> Result<f64> {
    let mut stream = TcpStream::connect(server)?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let line = text.lines().find_map(|line| line.strip_prefix(METRIC));
    Ok(line.context("etcd counts its events")?.trim().parse()?)
}
