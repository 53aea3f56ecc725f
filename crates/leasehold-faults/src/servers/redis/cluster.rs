//! A Redis cluster: three masters, a replica each.

use std::process::Command;

use anyhow::{Context, Result, bail};

use super::Redis;
use super::sentinel::until;
use crate::servers::free_port;

/// How many nodes there are: half of them replicas.
const NODES: usize = 6;

/// The nodes of a cluster.
#[derive(Debug)]
pub struct RedisCluster {
    /// All of them; the first three began as masters.
    pub nodes: Vec<Redis>,
}

impl RedisCluster {
    /// All of them, joined. A master that is silent for two seconds is replaced.
    ///
    /// # Errors
    ///
    /// When one of them does not start, or they do not find together.
    pub fn start(options: &[&str]) -> Result<Self> {
        let nodes = (0..NODES).map(|_| node(options)).collect::<Result<Vec<_>>>()?;
        let mut create = Command::new("redis-cli");
        create.args(["--cluster", "create"]).args(nodes.iter().map(|node| node.addr().to_string()));
        create.args(["--cluster-replicas", "1", "--cluster-yes"]);
        let made = create.output()?;
        if !made.status.success() {
            bail!("redis-cli --cluster create: {}", String::from_utf8_lossy(&made.stdout));
        }
        let cluster = Self { nodes };
        for node in &cluster.nodes {
            until("the cluster is whole", || {
                let state = node.cli(&["cluster", "info"])?;
                let links = node.cli(&["info", "replication"])?;
                let linked =
                    links.contains("master_link_status:up") || links.contains("connected_slaves:1");
                Ok(state.contains("cluster_state:ok") && linked)
            })?;
        }
        Ok(cluster)
    }

    /// Its URL: some of the nodes, which tell of the others.
    pub fn url(&self) -> String {
        format!("redis+cluster://{},{}", self.nodes[0].addr(), self.nodes[1].addr())
    }

    /// A node that belongs to no cluster, as one does that was removed and reset.
    ///
    /// # Errors
    ///
    /// When it does not start.
    pub fn lone_node() -> Result<Redis> {
        node(&[])
    }

    /// The present master of the slot that this key is in.
    ///
    /// # Errors
    ///
    /// When no node says.
    pub fn master_of(&self, key: &str) -> Result<&Redis> {
        let slot: u32 = self.asked(&["cluster", "keyslot", key])?.parse()?;
        let lines = self.asked(&["cluster", "nodes"])?;
        let owner = lines.lines().find(|line| {
            let words: Vec<_> = line.split(' ').collect();
            words.get(2).is_some_and(|flags| flags.contains("master") && !flags.contains("fail"))
                && words.iter().skip(8).any(|range| {
                    let (first, last) = range.split_once('-').unwrap_or((range, range));
                    let number = |text: &str| text.parse::<u32>().ok();
                    matches!((number(first), number(last)), (Some(first), Some(last))
                        if (first..=last).contains(&slot))
                })
        });
        let address = owner.and_then(|line| line.split(' ').nth(1)?.split('@').next());
        let address = address.with_context(|| format!("nobody has slot {slot}: {lines}"))?;
        let found = self.nodes.iter().find(|node| node.addr().to_string() == address);
        found.with_context(|| format!("{address} is not ours"))
    }

    /// The place of the present master of this key among the nodes.
    ///
    /// # Errors
    ///
    /// When no node says.
    pub fn place_of_master(&self, key: &str) -> Result<usize> {
        let port = self.master_of(key)?.port();
        self.nodes.iter().position(|node| node.port() == port).context("it is one of ours")
    }

    /// The slot of this key goes to another master, with all its keys.
    ///
    /// # Errors
    ///
    /// When it does not.
    pub fn move_slot_of(&self, key: &str) -> Result<()> {
        let from = self.master_of(key)?;
        let id = |node: &Redis| node.cli(&["cluster", "myid"]);
        let to = self.nodes.iter().find(|node| {
            let is_master =
                node.cli(&["info", "replication"]).is_ok_and(|said| said.contains("role:master"));
            is_master && node.port() != from.port()
        });
        let to = to.context("another master")?;
        let (from_id, to_id) = (id(from)?, id(to)?);
        let slot = from.cli(&["cluster", "keyslot", key])?;
        let said = to.cli(&["cluster", "setslot", &slot, "importing", &from_id])?;
        if said != "OK" {
            bail!("importing: {said}");
        }
        let said = from.cli(&["cluster", "setslot", &slot, "migrating", &to_id])?;
        if said != "OK" {
            bail!("migrating: {said}");
        }
        loop {
            let keys = from.cli(&["cluster", "getkeysinslot", &slot, "10"])?;
            let keys: Vec<_> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            let port = to.port().to_string();
            let mut migrate = vec!["migrate", "127.0.0.1", &port, "", "0", "5000", "keys"];
            migrate.extend(&keys);
            let said = from.cli(&migrate)?;
            if !matches!(said.as_str(), "OK" | "NOKEY") {
                bail!("migrate: {said}");
            }
        }
        for node in [to, from] {
            let said = node.cli(&["cluster", "setslot", &slot, "node", &to_id])?;
            if said != "OK" {
                bail!("setslot: {said}");
            }
        }
        Ok(())
    }

    /// What a node that runs says to these words.
    fn asked(&self, words: &[&str]) -> Result<String> {
        let said = self.nodes.iter().find_map(|node| node.cli(words).ok());
        said.context("no node runs")
    }
}

fn node(options: &[&str]) -> Result<Redis> {
    let bus = free_port().to_string();
    let mut words = vec![
        "--cluster-enabled",
        "yes",
        "--cluster-node-timeout",
        "2000",
        "--cluster-port",
        &bus,
        "--repl-diskless-sync-delay",
        "0",
        "--repl-ping-replica-period",
        "1",
    ];
    words.extend(options);
    Redis::start(&words)
}
