//! The embedded store: one machine, many processes, no server.
//!
//! A SQLite database in WAL mode. A power cut ends every holder on the machine as
//! well, so leases need no fsync: those of an earlier boot are void. (Another boot id while
//! others have the file open is a container's: refused.) Tokens survive it
//! by a ceiling that is fsynced once a minute. Waiters are woken by a Unix socket, and
//! a holder whose process is gone is replaced at once.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::bell::Bells;
use self::error::{Fault, PATIENCE, retry_while_busy};
use self::file::OpenedFile;
use self::housekeeping::Keeper;
use self::log::Chores;
use self::process::Viewer;
use self::session::Session;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};

mod acquire;
mod admin;
mod bell;
mod error;
mod file;
mod hold;
mod housekeeping;
mod log;
mod path;
mod process;
mod row;
mod run;
mod schema;
mod session;
#[cfg(test)]
mod tests;
mod wait;

const GUARANTEES: Guarantees = Guarantees {
    consistency: Consistency::Linearizable,
    scope: Scope::Machine,
    ends_with: EndsWith::Ttl,
    tokens: "per lock, at least the wall clock in µs, with an fsynced ceiling for power cuts",
    fair: true,
    survives_restart: true,
    may_lose: &["the database file is removed or replaced while processes use it"],
    ..Guarantees::of("sqlite")
};

/// The embedded store. See the [module](self).
pub struct SqliteStore {
    path: PathBuf,
    file: OpenedFile,
    clock: Clock,
    viewer: Viewer,
    /// Requests of this store take turns, without blocking a thread.
    turns: Arc<Semaphore>,
    session: Mutex<Session>,
    bells: Bells,
    chores: Arc<Chores>,
}

impl SqliteStore {
    /// Opens the store in this file, which is created if it is not there. Its directory
    /// must exist, on a local disk. Needs no runtime; waits at most some seconds for
    /// other processes that are opening it.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Refused`] where it would not be safe: a shared file system, a file with
    /// hard links or mounted by itself, another application's database, one that others have
    /// open under another boot id.
    /// [`ErrorKind::Unusable`] for a file that is no SQLite database, damaged, not writable, or of
    /// a newer version. [`ErrorKind::Unavailable`] when the disk is full or another process blocks
    /// it. Nothing is lost by any of them.
    ///
    /// Later requests fail as [`ErrorKind::Gone`] once the file was removed or replaced
    /// (noticed within a second: all leases are lost then), and as `Refused` in a child that
    /// was forked after this.
    pub fn open(path: &Path, clock: Clock) -> Result<Arc<Self>> {
        let boot = process::boot_id().map_err(|error| {
            let message = format!("cannot read the kernel's boot id: {error}; is /proc mounted?");
            Error::new(ErrorKind::Refused, message).caused_by(error)
        });
        boot.and_then(|boot| Self::open_in_boot(path, clock, &boot))
            .map_err(|error| error.on_store("sqlite").during(Operation::Connect, None))
    }

    /// The user's own store: `leasehold/locks.db` in `$XDG_STATE_HOME`, else in
    /// `$HOME/.local/state`; for root without a home `/var/lib/leasehold/locks.db`.
    /// Its directory is created if it is not there, for this user only.
    ///
    /// # Errors
    ///
    /// When there is no such place, or it cannot be created.
    pub fn default_path() -> Result<PathBuf> {
        path::default_path()
    }

    /// The database's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn open_in_boot(path: &Path, clock: Clock, boot: &str) -> Result<Arc<Self>> {
        // In full, or SQLite would take `:memory:` for a wish of its own.
        let path = path::resolve(path)?;
        file::refuse_shared_disks(&path)?;
        if process::boot_clock_is_shifted() {
            return Err(Error::new(
                ErrorKind::Refused,
                "this process is in a time namespace with a boot clock of its own, which \
                 other processes do not share; run it outside of that namespace",
            ));
        }
        file::refuse_second_name(&path)?;
        file::refuse_mounts(&path)?;
        path::create(&path);
        let explain = |fault: Fault| fault.into_error(&path);
        let mut connection = schema::open(&path, &clock, boot).map_err(explain)?;
        // Here, and not by the thread: commands that come and go end before it is done.
        housekeeping::report("checkpoint", log::checkpoint_if_long(&connection));
        let file = OpenedFile::new(&path)?;
        path::share_log(&path);
        let unusable = |error: std::io::Error| {
            let message = format!("cannot use {}: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).not_applied().caused_by(error)
        };
        let folder = path::beside(&path, "-bells");
        let bell = format!("{:016x}", rand::random::<u64>());
        let bells = Bells::new(bell.clone(), folder.clone(), path.clone()).map_err(unusable)?;
        let mut second = retry_while_busy(PATIENCE, || schema::connect(&path)).map_err(explain)?;
        let (viewer, chores) = (Viewer::here(), Arc::<Chores>::default());
        for watched in [&mut connection, &mut second] {
            chores.watch(watched).map_err(|error| explain(error.into()))?;
        }
        let session = |connection| Session::new(connection, clock.clone(), viewer.clone(), &bell);
        let keeper = Keeper { session: session(second), chores: chores.clone(), bells: folder };
        keeper.start().map_err(unusable)?;
        let (turns, session) = (Arc::new(Semaphore::new(1)), Mutex::new(session(connection)));
        Ok(Arc::new(Self { path, file, clock, viewer, turns, session, bells, chores }))
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Drop for SqliteStore {
    fn drop(&mut self) {
        self.chores.stop();
    }
}

super::kit::verbs::verbs!(SqliteStore, "sqlite", |_store| &GUARANTEES, Limits::new(512, 1));
