//! PostgreSQL, in both modes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};
use fastrand::Rng;

use super::{Deployment, Store};
use crate::fault_run::fault::Fault;
use crate::fault_run::plan::Plan;
use crate::fault_run::schedule::Strike;
use crate::servers::Postgres;

/// Every client is two or three connections, and every one of them a process of the server.
const WAITERS: usize = 50;

/// A broken connection is the end of a lock, on either side when that side hears of it.
const HEARD_LATER: (&str, &str) =
    ("X", "a connection that breaks ends the lock at the server before its holder hears of it");

/// What a busy machine needs from the end of a session to the holder that reads of it.
/// The longest seen was 3.8 ms; the table at the end of a run says how long it was there.
const HEARD_WITHIN: Duration = Duration::from_millis(50);

/// PostgreSQL.
#[derive(Debug)]
pub(super) enum Mode {
    /// Leases in a table.
    Lease,
    /// Advisory locks.
    Session,
}

impl Store for Mode {
    fn name(&self) -> &'static str {
        match self {
            Self::Lease => "postgres",
            Self::Session => "pgsession",
        }
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Pause | Fault::Freeze | Fault::Queue | Fault::Kill | Fault::Waiters => None,
            Fault::Network | Fault::Partition | Fault::Clock | Fault::Restart => None,
            Fault::Amnesia => Some("a database without its data is another database"),
            Fault::Older => Some("what is committed is on disk; a backup is another database"),
            Fault::Leader | Fault::Stopped => {
                Some("one server; the tests promote a standby that lagged")
            }
            Fault::Disk => Some("a full disk is the database's own matter: it refuses writes"),
        }
    }

    fn does_not_promise(&self, fault: Fault) -> &'static [(&'static str, &'static str)] {
        match (self, fault) {
            (Self::Lease, Fault::Clock) => {
                &[("X", "the database's clock jumps ahead: leases end early, tokens fence them")]
            }
            (Self::Session, Fault::Network) => &[HEARD_LATER],
            _ => &[],
        }
    }

    fn heard_within(&self, fault: Fault) -> Duration {
        match (self, fault) {
            // A server that ends lets go of its sessions one after the other. Under libfaketime its
            // timers see the true clock: set back, it takes a session that was just used for idle.
            (Self::Session, Fault::Clock | Fault::Restart) => HEARD_WITHIN,
            _ => Duration::ZERO,
        }
    }

    fn ttl(&self) -> Duration {
        match self {
            Self::Lease => Duration::from_millis(500),
            Self::Session => Duration::from_millis(700),
        }
    }

    fn plan(&self, fault: Fault) -> Plan {
        let usual = Plan::usual(fault, self.ttl());
        let clients = if fault == Fault::Waiters { WAITERS } else { usual.clients };
        // Session mode asks the server to end a session whose client is silent for so long.
        let gives_up = matches!(self, Self::Session).then(|| self.ttl());
        Plan { clients, gives_up, ..usual }
    }

    fn set(&self, _folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
        let server = match fault {
            Fault::Clock => Postgres::start_with_clock(&[])?,
            _ => Postgres::start(&[])?,
        };
        let mode = match self {
            Self::Lease => "lease",
            Self::Session => "session",
        };
        Ok(Box::new(Set { server, mode }))
    }
}

#[derive(Debug)]
struct Set {
    server: Postgres,
    mode: &'static str,
}

impl Deployment for Set {
    fn servers(&self) -> Vec<SocketAddr> {
        vec![self.server.addr()]
    }

    fn url(&self, servers: &[SocketAddr]) -> String {
        let mode = self.mode;
        format!("postgres://postgres@{}/postgres?sslmode=disable&mode={mode}", servers[0])
    }

    fn inject(&mut self, fault: Fault, strike: &Strike) -> Result<()> {
        match fault {
            Fault::Restart => self.server.crash(),
            // Back or ahead: by less than a TTL, or by far more.
            Fault::Clock => {
                let mut rng = Rng::with_seed(strike.draw);
                let by = *rng.choice(&[1, 5, 60, 3_600]).unwrap_or(&60);
                self.server.set_clock(if rng.bool() { by } else { -by })?;
            }
            _ => bail!("{} is not for a database", fault.name()),
        }
        Ok(())
    }

    fn heal(&mut self, fault: Fault, _strike: &Strike) -> Result<()> {
        match fault {
            Fault::Restart => self.server.restart(),
            Fault::Clock => self.server.set_clock(0),
            _ => bail!("{} is not for a database", fault.name()),
        }
    }
}
