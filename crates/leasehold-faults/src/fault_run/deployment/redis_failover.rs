//! Redis with somebody to take over: a master behind sentinels, or a cluster. Masters are
//! killed or stopped for long enough that another takes over, one in two while its replica
//! lags behind (rows 8 and 16).

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use fastrand::Rng;

use super::{Deployment, Store};
use crate::fault_run::fault::Fault;
use crate::fault_run::plan::Plan;
use crate::fault_run::schedule::{Rhythm, Strike};
use crate::servers::{Redis, RedisCluster, RedisSentinel};

/// For how long a replica hears nothing before its master is lost.
const LAG: Duration = Duration::from_millis(150);

/// The kinds of deployments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Failover {
    /// One master, its replica, three sentinels.
    Sentinel,
    /// Three masters with a replica each.
    Cluster,
}

impl Store for Failover {
    fn name(&self) -> &'static str {
        match self {
            Self::Sentinel => "redis-sentinel",
            Self::Cluster => "redis-cluster",
        }
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Pause | Fault::Queue | Fault::Leader | Fault::Waiters => None,
            Fault::Network | Fault::Partition => {
                Some("its servers say themselves where they are: clients go past a proxy")
            }
            _ => Some("that is the same as with one server"),
        }
    }

    fn does_not_promise(&self, fault: Fault) -> &'static [(&'static str, &'static str)] {
        match fault {
            Fault::Leader => {
                &[("X", "replication is asynchronous: a lease may be lost with its master")]
            }
            _ => &[],
        }
    }

    fn failover(&self) -> Duration {
        // A second of silence, an election, a pause between two of them; on a busy machine.
        Duration::from_secs(20)
    }

    fn plan(&self, fault: Fault) -> Plan {
        let mut plan = Plan::usual(fault, self.ttl());
        if fault == Fault::Leader {
            let [every, shortest, longest] = [5, 3, 5].map(Duration::from_secs);
            plan.rhythm = Some(Rhythm { every, shortest, longest });
        }
        plan
    }

    fn set(&self, _folder: &Path, _fault: Fault) -> Result<Box<dyn Deployment>> {
        let servers = match self {
            Self::Sentinel => Servers::Sentinel(Box::new(RedisSentinel::start(&[])?)),
            Self::Cluster => Servers::Cluster(RedisCluster::start(&[])?),
        };
        Ok(Box::new(Set { servers, struck: None }))
    }
}

#[derive(Debug)]
enum Servers {
    Sentinel(Box<RedisSentinel>),
    Cluster(RedisCluster),
}

#[derive(Debug)]
struct Set {
    servers: Servers,
    /// Which server is down, and whether it is only stopped.
    struck: Option<(usize, bool)>,
}

impl Set {
    fn all(&mut self) -> &mut [Redis] {
        match &mut self.servers {
            Servers::Sentinel(deployment) => &mut deployment.servers,
            Servers::Cluster(cluster) => &mut cluster.nodes,
        }
    }

    /// A master, by this draw where there are several.
    fn master(&mut self, draw: u64) -> Result<usize> {
        let port = match &self.servers {
            Servers::Sentinel(deployment) => deployment.master_port()?,
            Servers::Cluster(cluster) => return cluster.place_of_master(&draw.to_string()),
        };
        match self.all().iter().position(|server| server.port() == port) {
            Some(place) => Ok(place),
            None => bail!("the sentinels name a stranger at port {port}"),
        }
    }
}

impl Deployment for Set {
    fn url(&self, _servers: &[SocketAddr]) -> String {
        let url = match &self.servers {
            Servers::Sentinel(deployment) => deployment.url(),
            Servers::Cluster(cluster) => cluster.url(),
        };
        format!("{url}?timeout=500ms")
    }

    fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        if fault != Fault::Leader {
            bail!("{} is not for {self:?}", fault.name());
        }
        let mut rng = Rng::with_seed(strike.draw);
        let (master, stopped, lagging) = (self.master(strike.draw)?, rng.bool(), rng.bool());
        let servers = self.all();
        if lagging {
            // What is written meanwhile is known to the master alone: its replicas do not read.
            let others = || servers.iter().enumerate().filter(|(place, _)| *place != master);
            let replicas: Vec<_> = others()
                .filter(|(_, server)| {
                    server.cli(&["role"]).is_ok_and(|said| said.starts_with("slave"))
                })
                .collect();
            replicas.iter().for_each(|(_, replica)| replica.process().pause());
            std::thread::sleep(LAG);
            servers[master].process().pause();
            replicas.iter().for_each(|(_, replica)| replica.process().resume());
        }
        match stopped {
            true => servers[master].process().pause(),
            false => servers[master].kill(),
        }
        self.struck = Some((master, stopped));
        Ok(())
    }

    fn heal(&mut self, _fault: Fault, _strike: &Strike) -> Result<()> {
        match self.struck.take() {
            Some((master, true)) => self.all()[master].process().resume(),
            Some((master, false)) => self.all()[master].restart()?,
            None => {}
        }
        Ok(())
    }
}
