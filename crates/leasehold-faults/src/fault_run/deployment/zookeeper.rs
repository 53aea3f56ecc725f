//! ZooKeeper: one server on its own, or three when their leader is struck.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Deployment, Store};
use crate::fault_run::fault::Fault;
use crate::fault_run::schedule::Strike;
use crate::servers::zookeeper::{Ensemble, TICK, Zookeeper as Server};

/// ZooKeeper.
#[derive(Debug)]
pub(super) struct Zookeeper;

impl Store for Zookeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Clock => Some("neither tokens nor sessions go by a wall clock"),
            Fault::Amnesia | Fault::Older => {
                Some("what is acknowledged is on the disks of a majority")
            }
            Fault::Disk => Some("the disk is the servers', not the clients'"),
            Fault::Stopped => Some("`leader` stops it as well: every fourth time"),
            _ => None,
        }
    }

    fn ttl(&self) -> Duration {
        // Sessions last for at least two ticks; and a Java process takes its time.
        Duration::from_secs(1)
    }

    fn failover(&self) -> Duration {
        Duration::from_secs(15)
    }

    fn set(&self, _folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
        Ok(match fault {
            Fault::Leader => Box::new(Three { ensemble: Ensemble::start(3)?, struck: None }),
            _ => Box::new(One { server: Server::start()? }),
        })
    }
}

fn url(servers: &[SocketAddr]) -> String {
    let hosts: Vec<_> = servers.iter().map(SocketAddr::to_string).collect();
    let (hosts, tick) = (hosts.join(","), TICK.as_millis());
    format!("zk://{hosts}/run?session=1s&tick={tick}ms")
}

/// Every fourth time it is only stopped, and goes on with what it knew.
fn only_stops(strike: &Strike) -> bool {
    strike.draw.is_multiple_of(4)
}

#[derive(Debug)]
struct One {
    server: Server,
}

impl Deployment for One {
    fn servers(&self) -> Vec<SocketAddr> {
        vec![self.server.addr()]
    }

    fn url(&self, servers: &[SocketAddr]) -> String {
        url(servers)
    }

    fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        match fault {
            Fault::Restart if only_stops(strike) => self.server.process().pause(),
            Fault::Restart => self.server.kill(),
            _ => bail!("{} does not strike this server", fault.name()),
        }
        Ok(())
    }

    fn heal(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        match fault {
            Fault::Restart if only_stops(strike) => self.server.process().resume(),
            Fault::Restart => self.server.restart()?,
            _ => bail!("{} does not strike this server", fault.name()),
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Three {
    ensemble: Ensemble,
    /// The leader that was struck.
    struck: Option<usize>,
}

impl Deployment for Three {
    fn servers(&self) -> Vec<SocketAddr> {
        self.ensemble.servers.iter().map(Server::addr).collect()
    }

    fn url(&self, servers: &[SocketAddr]) -> String {
        url(servers)
    }

    fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        if fault != Fault::Leader {
            bail!("{} does not strike an ensemble", fault.name());
        }
        let leader = self.ensemble.leader()?;
        self.struck = Some(leader);
        match only_stops(strike) {
            true => self.ensemble.servers[leader].process().pause(),
            false => self.ensemble.servers[leader].kill(),
        }
        Ok(())
    }

    fn heal(&mut self, _fault: Fault, strike: &Strike) -> Result<()> {
        let struck = self.struck.take().context("no leader was struck")?;
        match only_stops(strike) {
            true => self.ensemble.servers[struck].process().resume(),
            false => self.ensemble.servers[struck].restart()?,
        }
        self.ensemble.wait_until_all_serve()
    }
}
