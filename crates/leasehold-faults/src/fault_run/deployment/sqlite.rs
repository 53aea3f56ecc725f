//! The embedded store, shared by processes of one machine.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

use super::{Deployment, Store};
use crate::fault_run::fault::Fault;
use crate::fault_run::schedule::Strike;
use crate::faults::disk::SmallDisk;

/// Room for the store and a write-ahead log of its greatest length (12 MiB), in KiB: it must be
/// the filler that fills it.
const DISK: u32 = 16 * 1024;

/// The embedded store.
#[derive(Debug)]
pub(super) struct Sqlite;

impl Store for Sqlite {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Pause | Fault::Freeze | Fault::Queue | Fault::Kill => None,
            Fault::Disk | Fault::Waiters => None,
            Fault::Network | Fault::Partition => Some("there is no network"),
            Fault::Restart => Some("there is no server; `kill` ends processes that write"),
            Fault::Amnesia | Fault::Older => Some("there is no server that could lose its data"),
            Fault::Clock => Some("there is no server with a clock of its own"),
            Fault::Leader | Fault::Stopped => Some("there is no cluster"),
        }
    }

    fn set(&self, folder: &Path, fault: Fault) -> Result<Box<dyn Deployment>> {
        Ok(Box::new(match fault {
            Fault::Disk => {
                let disk = folder.join("disk");
                let mounted = SmallDisk::mount(&disk, DISK)?;
                Database { path: disk.join("locks.db"), disk: Some(mounted) }
            }
            _ => Database { path: folder.join("locks.db"), disk: None },
        }))
    }
}

#[derive(Debug)]
struct Database {
    path: PathBuf,
    disk: Option<SmallDisk>,
}

impl Deployment for Database {
    fn url(&self, _servers: &[SocketAddr]) -> String {
        format!("sqlite:{}", self.path.display())
    }

    fn inject(&mut self, fault: Fault, _strike: &Strike) -> Result<()> {
        match (fault, &self.disk) {
            (Fault::Disk, Some(disk)) => disk.fill(),
            _ => bail!("{} is not for an embedded store", fault.name()),
        }
    }

    fn heal(&mut self, fault: Fault, _strike: &Strike) -> Result<()> {
        match (fault, &self.disk) {
            (Fault::Disk, Some(disk)) => disk.empty(),
            _ => bail!("{} is not for an embedded store", fault.name()),
        }
    }
}
