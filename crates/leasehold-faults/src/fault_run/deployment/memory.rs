//! The store in the memory of one process: its workers are threads.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::Result;

use super::{Deployment, Store};
use crate::fault_run::fault::Fault;

/// The store in memory.
#[derive(Debug)]
pub(super) struct Memory;

impl Store for Memory {
    fn name(&self) -> &'static str {
        "memory"
    }

    fn does_not_apply(&self, fault: Fault) -> Option<&'static str> {
        match fault {
            Fault::Pause | Fault::Queue | Fault::Waiters => None,
            Fault::Freeze => Some("freezing the process freezes the store"),
            Fault::Kill | Fault::Restart | Fault::Amnesia | Fault::Older => {
                Some("the store dies with its process")
            }
            Fault::Disk => Some("the store has no disk"),
            Fault::Network | Fault::Partition => Some("there is no network"),
            Fault::Clock => Some("there is no server with a clock of its own"),
            Fault::Leader | Fault::Stopped => Some("there is no cluster"),
        }
    }

    fn in_process(&self) -> bool {
        true
    }

    fn set(&self, folder: &Path, _fault: Fault) -> Result<Box<dyn Deployment>> {
        Ok(Box::new(Named(folder.display().to_string())))
    }
}

#[derive(Debug)]
struct Named(String);

impl Deployment for Named {
    fn url(&self, _servers: &[SocketAddr]) -> String {
        format!("memory:faults-{}", self.0)
    }
}
