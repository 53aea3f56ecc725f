//! etcd: one member, or three where the leader is struck.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Deployment, Store};
use crate::fault_run::fault::Fault;
use crate::fault_run::plan::Plan;
use crate::fault_run::schedule::{Rhythm, Strike};
use crate::servers;

/// Half of what is usual: then leases of one second can be had.
const QUICK: &[&str] = &["--heartbeat-interval", "50", "--election-timeout", "500"];

/// etcd.
#[derive(Debug)]
pub(super) struct Etcd;

impl Store for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Pause | Fault::Freeze | Fault::Queue | Fault::Kill | Fault::Waiters => None,
            Fault::Network | Fault::Partition | Fault::Restart => None,
            Fault::Leader | Fault::Stopped => None,
            Fault::Clock => Some("it has no use for the wall clock, and faketime none for Go"),
            Fault::Amnesia => Some("a member without its data is another member"),
            Fault::Older => Some("what is acknowledged is on the disks of a majority"),
            Fault::Disk => Some("a full disk is etcd's own matter: it refuses writes"),
        }
    }

    fn does_not_promise(&self, fault: Fault) -> &'static [(&'static str, &'static str)] {
        match fault {
            Fault::Stopped => &[(
                "X",
                "a leader that was stopped revokes leases that were renewed elsewhere \
                 (etcd#15247, before 3.4.31 and 3.5.13)",
            )],
            _ => &[],
        }
    }

    fn ttl(&self) -> Duration {
        Duration::from_secs(1)
    }

    fn failover(&self) -> Duration {
        // An election, and what it adds: a new leader gives every lease its whole TTL again.
        Duration::from_secs(10)
    }

    fn plan(&self, fault: Fault) -> Plan {
        let usual = Plan::usual(fault, self.ttl());
        match fault {
            // 32 clients: too many for leases of a second, with three members on a small machine.
            Fault::Leader => Plan {
                clients: 4,
                ttl: Duration::from_secs(4),
                rhythm: Some(Rhythm {
                    every: Duration::from_secs(4),
                    shortest: Duration::from_millis(100),
                    longest: Duration::from_secs(3),
                }),
                ..usual
            },
            _ => usual,
        }
    }

    fn set(&self, _folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
        let members = match fault {
            Fault::Leader | Fault::Stopped => 3,
            _ => 1,
        };
        let cluster = servers::Etcd::start(members, QUICK)?;
        Ok(Box::new(Set { cluster, struck: None }))
    }
}

#[derive(Debug)]
struct Set {
    cluster: servers::Etcd,
    /// Which member is down, and whether it is only stopped.
    struck: Option<(usize, bool)>,
}

impl Deployment for Set {
    fn servers(&self) -> Vec<SocketAddr> {
        (0..self.cluster.count()).map(|member| self.cluster.addr(member)).collect()
    }

    fn url(&self, servers: &[SocketAddr]) -> String {
        let hosts: Vec<_> = servers.iter().map(ToString::to_string).collect();
        format!("etcd://{}/faults", hosts.join(","))
    }

    fn inject(&mut self, fault: Fault, _strike: &Strike) -> Result<()> {
        let (member, stopped) = match fault {
            Fault::Restart => (0, false),
            Fault::Leader => (self.cluster.leader()?, false),
            Fault::Stopped => (self.cluster.leader()?, true),
            _ => bail!("{} is not for etcd", fault.name()),
        };
        match stopped {
            true => self.cluster.process(member).pause(),
            false => self.cluster.kill(member),
        }
        self.struck = Some((member, stopped));
        Ok(())
    }

    fn heal(&mut self, _fault: Fault, _strike: &Strike) -> Result<()> {
        match self.struck.take() {
            Some((member, true)) => self.cluster.process(member).resume(),
            Some((member, false)) => self.cluster.restart(member)?,
            None => {}
        }
        Ok(())
    }
}
