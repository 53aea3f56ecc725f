//! What a run costs at the nodes, by their own count.

use anyhow::{Context, Result};
use redis::aio::MultiplexedConnection;

/// What all nodes together have done so far.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Effort {
    /// CPU time in microseconds.
    pub(super) cpu: f64,
    /// Calls of scripts.
    pub(super) calls: f64,
}

impl Effort {
    pub(super) async fn of(nodes: &[MultiplexedConnection]) -> Result<Self> {
        let mut effort = Self::default();
        for node in nodes {
            let mut node = node.clone();
            let info: String =
                redis::cmd("INFO").arg("cpu").arg("commandstats").query_async(&mut node).await?;
            let field = |name: &str| {
                let line = info.lines().find_map(|line| line.strip_prefix(name));
                line.and_then(|figure| figure.parse::<f64>().ok()).context("no such figure")
            };
            effort.cpu += 1e6 * (field("used_cpu_user:")? + field("used_cpu_sys:")?);
            let calls = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
            let calls = calls.and_then(|rest| rest.split(',').next()?.parse::<f64>().ok());
            effort.calls += calls.unwrap_or(0.0);
        }
        Ok(effort)
    }

    /// Adds what was done between these two.
    pub(super) fn add_between(&mut self, before: Self, after: Self) {
        self.cpu += after.cpu - before.cpu;
        self.calls += after.calls - before.calls;
    }
}
