//! What the embedded store promises, on real files and a clock that is turned by hand.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tempfile::TempDir;

use super::housekeeping::Keeper;
use super::log::{self, Call};
use super::path::beside;
use super::process::Viewer;
use super::session::Session;
use super::{SqliteStore, schema};
use crate::backend::{Backend, Claim, Grant, Release, Verdict};
use crate::clock::{Clock, ManualClock};
use crate::holder::Holder;
use crate::name::Name;

mod boots;
mod files;
mod leases;
mod properties;
mod queue;
mod tokens;

const TTL: Duration = Duration::from_secs(30);

/// A folder and a clock that several stores share, as the processes of a machine do.
struct Fixture {
    folder: TempDir,
    hand: Arc<ManualClock>,
}

impl Fixture {
    fn new() -> Self {
        Self { folder: TempDir::new().unwrap(), hand: Arc::new(ManualClock::new()) }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("locks.db")
    }

    fn clock(&self) -> Clock {
        Clock::manual(self.hand.clone())
    }

    fn open(&self) -> Arc<SqliteStore> {
        self.open_after("first boot")
    }

    fn open_after(&self, boot: &str) -> Arc<SqliteStore> {
        SqliteStore::open_in_boot(&self.path(), self.clock(), boot).unwrap()
    }

    /// Housekeeping that is done when the test says so.
    fn keeper(&self) -> Keeper {
        let connection = schema::connect(&self.path()).unwrap();
        let session = Session::new(connection, self.clock(), Viewer::here(), "keeper");
        let bells = beside(&self.path(), "-bells");
        Keeper { session, chores: Arc::default(), bells }
    }
}

fn name(name: &str) -> Name {
    Name::new(name).unwrap()
}

fn claim(lock: &str) -> Claim {
    Claim::new(name(lock), TTL, Arc::new(Holder::this_process()))
}

fn queueing(lock: &str) -> Claim {
    Claim { queue: true, ..claim(lock) }
}

async fn ask(store: &Arc<SqliteStore>, claim: &Claim) -> Verdict {
    store.clone().acquire(vec![claim.clone()]).await.unwrap().remove(0)
}

async fn take(store: &Arc<SqliteStore>, claim: &Claim) -> Grant {
    match ask(store, claim).await {
        Verdict::Granted(grant) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

async fn give_back(store: &Arc<SqliteStore>, claim: &Claim, grant: Grant) -> Release {
    store.clone().release(vec![claim.hold(grant.token)]).await.unwrap()[0]
}
