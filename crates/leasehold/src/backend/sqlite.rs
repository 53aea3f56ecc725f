//! The embedded store: one machine, many processes, no server.
//!
//! A SQLite database in WAL mode. A power cut ends every holder on the machine as
//! well, so leases need no fsync: those of an earlier boot are void. (Another boot id while
//! others have the file open is a container's: refused.) Tokens survive it
//! by a ceiling that is fsynced once a minute. Waiters are woken by a Unix socket, and
//! a holder whose process is gone is replaced at once.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Semaphore;

use self::bell::Bells;
use self::connection::Session;
use self::error::Fault;
use self::file::OpenedFile;
use self::housekeeping::{Chores, Keeper};
use self::process::Viewer;
use crate::backend::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

mod access;
mod bell;
mod boot;
mod claim;
mod connection;
mod error;
mod examine;
mod file;
mod filesystem;
mod force;
mod hold;
mod housekeeping;
mod inspect;
mod log;
mod mount;
mod path;
mod process;
mod queue;
mod row;
mod schema;
#[cfg(test)]
mod tests;
mod token;
mod wait;

const GUARANTEES: Guarantees = Guarantees {
    store: "sqlite",
    consistency: Consistency::Linearizable,
    scope: Scope::Machine,
    ends_with: EndsWith::Ttl,
    tokens: "per lock, at least the wall clock in µs, with an fsynced ceiling for power cuts",
    fair: true,
    survives_restart: true,
    may_lose: &["the database file is removed or replaced while processes use it"],
    extra_drift: Duration::ZERO,
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
    /// [`ErrorKind::Unusable`] for a file that is no SQLite database, damaged, not writable, or of a newer version. [`ErrorKind::Unavailable`] when the disk is full
    /// or another process blocks it. Nothing is lost by any of them.
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
        let path = &path::resolve(path)?;
        filesystem::check(path)?;
        if process::boot_clock_is_shifted() {
            return Err(Error::new(
                ErrorKind::Refused,
                "this process is in a time namespace with a boot clock of its own, which \
                 other processes do not share; run it outside of that namespace",
            ));
        }
        file::refuse_second_name(path)?;
        file::refuse_mounts(path)?;
        access::create(path);
        let explain = |fault: Fault| fault.into_error(path);
        let connection = boot::open(path, &clock, boot).map_err(explain)?;
        // Here, and not by the thread: commands that come and go end before it is done.
        housekeeping::report("checkpoint", log::checkpoint_if_long(&connection));
        let file = OpenedFile::new(path)?;
        access::share_log(path);
        let unusable = |error: std::io::Error| {
            let message = format!("cannot use {}: {error}", path.display());
            Error::new(ErrorKind::Unavailable, message).caused_by(error)
        };
        let folder = beside(path, "-bells");
        let (viewer, chores) = (Viewer::here(), Arc::<Chores>::default());
        let bell = format!("{:016x}", rand::random::<u64>());
        let session = |connection| {
            Session::new(connection, clock.clone(), viewer.clone(), &bell, chores.clone())
                .map_err(explain)
        };
        let bells = Bells::new(bell.clone(), folder.clone(), path.clone()).map_err(unusable)?;
        let second = connection::insist(|| schema::connect(path)).map_err(explain)?;
        let keeper = Keeper { session: session(second)?, bells: folder };
        housekeeping::start(keeper).map_err(unusable)?;
        let (turns, session) = (Arc::new(Semaphore::new(1)), Mutex::new(session(connection)?));
        Ok(Arc::new(Self {
            path: path.clone(),
            file,
            clock,
            viewer,
            turns,
            session,
            bells,
            chores,
        }))
    }

    /// Runs a request, and says in its error what was asked.
    fn reply<T, W>(
        self: Arc<Self>,
        operation: Operation,
        lock: Option<Name>,
        items: usize,
        work: W,
    ) -> Reply<T>
    where
        T: Send + 'static,
        W: FnMut(&mut Session) -> Result<T, Fault> + Send + 'static,
    {
        Box::pin(async move {
            self.run(items, work).await.map_err(|error| describe(error, operation, lock.as_ref()))
        })
    }
}

fn describe(error: Error, operation: Operation, lock: Option<&Name>) -> Error {
    error.on_store("sqlite").during(operation, lock)
}

/// The lock that a request is about, if it is about one.
fn only<T>(items: &[T], name: impl Fn(&T) -> &Name) -> Option<Name> {
    match items {
        [item] => Some(name(item).clone()),
        _ => None,
    }
}

/// The database and what SQLite keeps beside it: the log and its index.
fn parts(path: &Path) -> [PathBuf; 3] {
    [path.to_owned(), beside(path, "-wal"), beside(path, "-shm")]
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
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

impl Backend for SqliteStore {
    fn guarantees(&self) -> &Guarantees {
        &GUARANTEES
    }

    fn limits(&self) -> Limits {
        Limits::new(512, 1).in_step()
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let lock = only(&claims, |claim| &claim.name);
        self.reply(Operation::Acquire, lock, claims.len(), move |session| {
            claim::acquire(session, &claims)
        })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move {
            let name = claim.name.clone();
            let turn = self.wait_in_line(claim).await;
            turn.map_err(|error| describe(error, Operation::Wait, Some(&name)))
        })
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        self.reply(Operation::Leave, Some(claim.name.clone()), 1, move |session| {
            claim::leave(session, &claim)
        })
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        let lock = only(&claims, |claim| &claim.name);
        self.reply(Operation::Settle, lock, claims.len(), move |session| {
            claim::settle(session, &claims)
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        let lock = only(&holds, |hold| &hold.name);
        self.reply(Operation::Renew, lock, holds.len(), move |session| hold::renew(session, &holds))
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        let lock = only(&holds, |hold| &hold.name);
        self.reply(Operation::Release, lock, holds.len(), move |session| {
            hold::release(session, &holds)
        })
    }

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        self.reply(Operation::Inspect, Some(name.clone()), 1, move |session| {
            inspect::inspect(session, &name)
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        Box::pin(async move {
            let listed = self.run_aside(move |session| inspect::list(session, &prefix)).await;
            listed.map_err(|error| describe(error, Operation::List, None))
        })
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        self.reply(Operation::ForceRelease, Some(name.clone()), 1, move |session| {
            force::force_release(session, &name, &forced)
        })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        let path = self.path.clone();
        Box::pin(async move {
            let found = self.run_aside(move |session| examine::examine(session, &path)).await;
            found.map_err(|error| describe(error, Operation::Examine, None))
        })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move {
            let mut rung = pin!(self.bells.hint());
            loop {
                tokio::select! {
                    hint = &mut rung => return Ok(hint),
                    () = self.clock.sleep(file::INTERVAL) => {}
                }
                // Between renewals nothing else would notice.
                if self.file.look().is_err() {
                    return Ok(Hint::All);
                }
            }
        })
    }
}
