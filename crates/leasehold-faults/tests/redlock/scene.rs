//! Nodes, clients of them, and what is seen at the nodes.

use std::time::Duration;

use leasehold::Locks;
use leasehold_conformance::fixture::within_bound;
use leasehold_faults::servers::{Redis, Redlock};

/// The TTL of leases that must not end by themselves in a test.
pub(crate) const LONG: Duration = Duration::from_secs(60);
/// The shortest that a busy machine can keep.
pub(crate) const SHORT: Duration = Duration::from_secs(3);
/// What makes a node keep its data.
pub(crate) const DURABLE: &[&str] = &["--appendonly", "yes", "--appendfsync", "always"];

/// So many nodes with these options.
pub(crate) fn nodes(count: usize, options: &[&str]) -> Redlock {
    Redlock::start(count, options).expect("Redis servers start")
}

/// A client of these nodes.
pub(crate) async fn client(nodes: &Redlock) -> Locks {
    connect(nodes.url()).await
}

/// A client of this URL.
pub(crate) async fn connect(url: impl Into<String>) -> Locks {
    let connecting = leasehold::connect(url).label("redlock test");
    within_bound("the connection", connecting.into_future()).await.expect("the store opens")
}

/// What a node says it is.
pub(crate) fn marker(node: &Redis) -> String {
    node.cli(&["get", "leasehold:node:lock:"]).expect("the node answers")
}

/// The lock keys of a node.
pub(crate) fn lock_keys(node: &Redis) -> Vec<String> {
    let keys = node.cli(&["keys", "lock:*"]).expect("the node answers");
    keys.lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

/// How many scripts all nodes have run.
pub(crate) fn scripts_run(nodes: &Redlock) -> u64 {
    let runs = nodes.nodes.iter().map(|node| {
        // Those that failed were not known yet, and are sent again once in a server's life.
        count_of(node, "evalsha", "calls") - count_of(node, "evalsha", "failed_calls")
    });
    runs.sum()
}

/// A figure that a node keeps of a command.
pub(crate) fn count_of(node: &Redis, command: &str, figure: &str) -> u64 {
    let stats = node.cli(&["info", "commandstats"]).expect("the node answers");
    let command = format!("cmdstat_{command}:");
    let line = stats.lines().find_map(|line| line.strip_prefix(&command)).unwrap_or_default();
    let mut figures = line.split(',').filter_map(|figure| figure.split_once('='));
    let value = figures.find(|(name, _)| *name == figure).map(|(_, value)| value.parse());
    value.transpose().expect("it is a number").unwrap_or(0)
}
