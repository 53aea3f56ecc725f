//! Five Redis servers that know nothing of each other, of which a minority is struck.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;

use super::{Deployment, Store, redis, servers};
use crate::fault_run::fault::Fault;
use crate::fault_run::schedule::Strike;
use crate::faults::server::{Data, Server};

const NODES: usize = 5;
/// The most that may be struck at once.
const MINORITY: usize = 2;

/// Redlock, five nodes.
#[derive(Debug)]
pub(super) struct Redlock;

impl Store for Redlock {
    fn name(&self) -> &'static str {
        "redlock"
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Disk => Some("nodes run in memory, and say so when they cannot write"),
            Fault::Leader | Fault::Stopped => Some("there is none; restart strikes a minority"),
            _ => None,
        }
    }

    fn does_not_promise(&self, fault: Fault) -> &'static [(&'static str, &'static str)] {
        match fault {
            Fault::Clock => &[
                ("X", "keys expire by the nodes' wall clocks: early when two of them jump ahead"),
                ("L", "and late when they jump back"),
            ],
            _ => &[],
        }
    }

    fn ttl(&self) -> Duration {
        // Nodes have a quarter of it to answer, five of them on one machine.
        Duration::from_secs(1)
    }

    fn failover(&self) -> Duration {
        Duration::from_secs(5)
    }

    fn set(&self, folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
        let mut nodes = Vec::new();
        for node in 0..NODES {
            let mut server = redis::new_server(&folder.join(format!("node{node}")), fault)?;
            if fault == Fault::Clock {
                server = server.with_clock()?;
            }
            server.start(Data::Kept)?;
            nodes.push(server);
        }
        Ok(Box::new(Nodes { nodes, struck: Vec::new() }))
    }
}

#[derive(Debug)]
struct Nodes {
    nodes: Vec<Server>,
    struck: Vec<usize>,
}

impl Deployment for Nodes {
    fn servers(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Server::addr).collect()
    }

    fn url(&self, servers: &[SocketAddr]) -> String {
        // Every worker has a way of its own to the nodes: the list needs a name.
        let hosts: Vec<_> = servers.iter().map(ToString::to_string).collect();
        format!("redlock://{}?timeout=500ms&list=faults", hosts.join(","))
    }

    fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        let mut rng = Rng::with_seed(strike.draw);
        let mut places: Vec<_> = (0..NODES).collect();
        rng.shuffle(&mut places);
        let count = rng.usize(1..=MINORITY);
        self.struck = places[..count].to_vec();
        for node in &self.struck {
            servers::inject(&mut self.nodes[*node], fault, strike)?;
        }
        Ok(())
    }

    fn heal(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        for node in std::mem::take(&mut self.struck) {
            servers::heal(&mut self.nodes[node], fault, strike)?;
        }
        if fault == Fault::Older {
            self.nodes.iter().try_for_each(redis::save)?;
        }
        Ok(())
    }
}
