//! What a server says about itself.

use std::collections::HashMap;
use std::sync::Arc;

use super::script::text;
use super::session::{Server, value_of};
use crate::error::Result;

/// The answer to INFO.
#[derive(Debug, Default)]
pub(crate) struct Info(HashMap<String, String>);

impl Info {
    pub(crate) async fn ask(server: &Arc<Server>) -> Result<Self> {
        let answer = server.ask_in_time(&["INFO"]).await?;
        Ok(Self::parse(text(&answer)?))
    }

    fn parse(text: &str) -> Self {
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Self(fields.map(|(name, value)| (name.to_owned(), value.trim().to_owned())).collect())
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str) -> u64 {
        self.get(name).and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Its version of the protocol and commands, as Redis counts them.
    pub(crate) fn version(&self) -> (u32, u32, u32) {
        let mut parts = self.get("redis_version").unwrap_or_default().split('.');
        let mut next = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        (next(), next(), next())
    }

    /// What it is, in words.
    pub(crate) fn product(&self) -> String {
        match self.get("valkey_version") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", self.get("redis_version").unwrap_or("of unknown version")),
        }
    }

    pub(crate) fn is_master(&self) -> bool {
        self.get("role") == Some("master")
    }

    pub(crate) fn is_cluster(&self) -> bool {
        self.number("cluster_enabled") == 1
    }

    pub(crate) fn persists(&self) -> bool {
        self.number("aof_enabled") == 1
    }

    /// The policy by which it throws keys away when its memory is full, if it does.
    pub(crate) fn eviction(&self) -> Option<&str> {
        self.get("maxmemory_policy").filter(|policy| *policy != "noeviction")
    }

    /// Whether it has a limit at which it would.
    pub(crate) fn is_limited(&self) -> bool {
        self.number("maxmemory") > 0
    }
}

/// One setting, where the user in the URL may read it.
pub(crate) async fn setting(server: &Arc<Server>, name: &str) -> Option<String> {
    value_of(&server.ask_in_time(&["CONFIG", "GET", name]).await.ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_servers_say() {
        let info = Info::parse(
            "# Server\r\nredis_version:7.2.4\r\nvalkey_version:8.0.1\r\nrole:master\r\n\
             maxmemory:100\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:1\r\n",
        );
        assert_eq!(info.version(), (7, 2, 4));
        assert_eq!(info.product(), "Valkey 8.0.1");
        assert!(info.is_master() && info.persists() && info.is_limited());
        assert_eq!(info.eviction(), Some("allkeys-lru"));
        assert_eq!(Info::default().version(), (0, 0, 0));
    }
}
