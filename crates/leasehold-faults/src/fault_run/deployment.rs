//! Where a fault run is played: a store with all that it needs for a run.
//!
//! To measure another store, write one file in this folder and one line in [`ALL`]. The file
//! has a [`Store`], which says what is to be known before a run, and a [`Deployment`], which lives as
//! long as a run: it has the servers ([`Server`](crate::faults::server::Server)), says how to
//! connect to them, and does to them what only it can do. Workers, and the way between them and the
//! servers, are struck by the fault run itself.
//!
//! ```
//! use std::net::SocketAddr;
//! use std::path::Path;
//! use std::process::Command;
//!
//! use anyhow::Result;
//! use leasehold_faults::fault_run::fault::Fault;
//! use leasehold_faults::fault_run::schedule::Strike;
//! use leasehold_faults::fault_run::deployment::{Deployment, Store, servers};
//! use leasehold_faults::faults::server::{Data, Server};
//!
//! #[derive(Debug)]
//! struct Redis;
//!
//! impl Store for Redis {
//!     fn name(&self) -> &'static str {
//!         "redis"
//!     }
//!
//!     fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
//!         match fault {
//!             Fault::Disk => Some("it runs in memory"),
//!             Fault::Leader => Some("there is no cluster"),
//!             _ => None,
//!         }
//!     }
//!
//!     fn does_not_promise(&self, fault: Fault) -> &'static [(&'static str, &'static str)] {
//!         match fault {
//!             Fault::Amnesia => &[("X", "locks are lost with the data")],
//!             _ => &[],
//!         }
//!     }
//!
//!     fn set(&self, folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
//!         let make = |data: &Path, addr: SocketAddr| {
//!             let mut command = Command::new("redis-server");
//!             command.args(["--port", &addr.port().to_string(), "--appendonly", "yes"]);
//!             command.args(["--appendfsync", "always", "--dir"]).arg(data);
//!             command
//!         };
//!         let mut server = Server::new(&folder.join("redis"), make)?;
//!         if fault == Fault::Clock {
//!             server = server.with_clock()?;
//!         }
//!         server.start(Data::Kept)?;
//!         Ok(Box::new(OneServer(server)))
//!     }
//! }
//!
//! #[derive(Debug)]
//! struct OneServer(Server);
//!
//! impl Deployment for OneServer {
//!     fn servers(&self) -> Vec<SocketAddr> {
//!         vec![self.0.addr()]
//!     }
//!
//!     fn url(&self, servers: &[SocketAddr]) -> String {
//!         format!("redis://{}", servers[0])
//!     }
//!
//!     fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
//!         servers::inject(&mut self.0, fault, strike)
//!     }
//!
//!     fn heal(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
//!         servers::heal(&mut self.0, fault, strike)
//!     }
//! }
//! ```

use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::fault::Fault;
use super::plan::Plan;
use super::schedule::Strike;

mod etcd;
mod memory;
mod postgres;
mod redis;
mod redis_failover;
mod redlock;
pub mod servers;
mod sqlite;
mod zookeeper;

/// All stores that are measured.
pub const ALL: &[&dyn Store] = &[
    &memory::Memory,
    &sqlite::Sqlite,
    &redis::Redis,
    &redlock::Redlock,
    &redis_failover::Failover::Sentinel,
    &redis_failover::Failover::Cluster,
    &etcd::Etcd,
    &postgres::Mode::Lease,
    &postgres::Mode::Session,
    &zookeeper::Zookeeper,
];

/// The store of this name.
pub fn named(name: &str) -> Option<&'static dyn Store> {
    ALL.iter().copied().find(|store| store.name() == name)
}

/// A store whose histories are measured.
pub trait Store: fmt::Debug + Sync {
    /// Its name on the command line.
    fn name(&self) -> &'static str;

    /// Why a fault says nothing about it, if so.
    fn does_not_apply(&self, fault: Fault) -> Option<&'static str>;

    /// What is missing on this machine to run it, if anything.
    fn missing(&self) -> Option<String> {
        None
    }

    /// What it does not promise under a fault: the letter of a checker, and the reason. Such
    /// violations are counted and shown, but do not fail the run.
    fn does_not_promise(&self, _fault: Fault) -> &'static [(&'static str, &'static str)] {
        &[]
    }

    /// Where the store may end a lease by itself under a fault: within which time its holder hears of
    /// that. Until then another may have the lock; a longer overlap fails the run.
    fn heard_within(&self, _fault: Fault) -> Duration {
        Duration::ZERO
    }

    /// The TTL of its leases, unless [`Store::plan`] says otherwise.
    fn ttl(&self) -> Duration {
        Duration::from_millis(300)
    }

    /// How long it may take, beyond the TTL, until locks can be had again after a fault.
    fn failover(&self) -> Duration {
        Duration::from_secs(3)
    }

    /// What a run under this fault looks like.
    fn plan(&self, fault: Fault) -> Plan {
        Plan::usual(fault, self.ttl())
    }

    /// Whether it does not reach beyond a process, so that workers must be threads.
    fn in_process(&self) -> bool {
        false
    }

    /// Sets it up for a run, ready to be connected to. All its files go into `folder`.
    fn set(&self, folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>>;
}

/// A store that is set up for a run. Dropped, all its servers are gone.
pub trait Deployment: fmt::Debug {
    /// The servers that clients connect to; none if they need no network.
    fn servers(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// How a client connects that finds the servers at these addresses: their own, or, in
    /// the same order, those of proxies in front of them.
    fn url(&self, servers: &[SocketAddr]) -> String;

    /// Injects one of the faults that are placed on the deployment. What it may vary it takes from
    /// [`Strike::draw`], so that the same seed does the same again.
    fn inject(&mut self, fault: Fault, _strike: &Strike) -> Result<()> {
        bail!("{self:?} does not know how to inject {}", fault.name())
    }

    /// Ends what [`Deployment::inject`] began.
    fn heal(&mut self, fault: Fault, _strike: &Strike) -> Result<()> {
        bail!("{self:?} does not know how to heal {}", fault.name())
    }
}
