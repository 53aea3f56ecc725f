//! The nodes of a redlock: Redis servers that know nothing of each other.

use anyhow::Result;

use super::Redis;

/// Independent servers.
#[derive(Debug)]
pub struct Redlock {
    /// All of them.
    pub nodes: Vec<Redis>,
}

impl Redlock {
    /// So many servers with these options.
    ///
    /// # Errors
    ///
    /// When one of them does not start.
    pub fn start(count: usize, options: &[&str]) -> Result<Self> {
        let nodes = (0..count).map(|_| Redis::start(options));
        Ok(Self { nodes: nodes.collect::<Result<_>>()? })
    }

    /// The URL that names all of them.
    pub fn url(&self) -> String {
        let hosts: Vec<_> = self.nodes.iter().map(|node| node.addr().to_string()).collect();
        format!("redlock://{}", hosts.join(","))
    }
}
