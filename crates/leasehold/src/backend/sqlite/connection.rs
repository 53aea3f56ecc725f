//! The work connection and how requests run on it: at once on the caller's thread
//! (a transaction takes some ten microseconds, a hop to another thread costs more),
//! and on a blocking thread only when another process is in the way.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rusqlite::hooks::Wal;
use rusqlite::{CachedStatement, Connection};

use super::SqliteStore;
use super::bell::Ring;
use super::error::Fault;
use super::housekeeping::Chores;
use super::log::{self, Growth};
use super::process::Viewer;
use super::schema;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::Holder;
use crate::name::Name;

/// Requests with more items would keep an async thread from its other tasks.
const INLINE_ITEMS: usize = 64;
/// Another's transaction is over in microseconds: look again so often before hopping.
const INLINE_ATTEMPTS: u32 = 6;
const FIRST_PAUSE: Duration = Duration::from_micros(50);
const LONGEST_PAUSE: Duration = Duration::from_micros(500);
const PATIENCE: Duration = Duration::from_secs(5);
/// For a request that waited for its blocking thread until its patience was over.
const LAST_PATIENCE: Duration = Duration::from_millis(10);

/// The work connection, and what this process knows of the database.
pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) clock: Clock,
    pub(super) viewer: Viewer,
    /// The name of this store's bell.
    pub(super) bell: String,
    /// The ceiling when last read: it only rises, so this may be low but never high.
    pub(super) ceiling: i64,
    /// The ids of the holders that claimed through this store.
    pub(super) clients: Vec<(Arc<Holder>, i64)>,
    /// Clients registered in the transaction under way.
    pub(super) newcomers: Vec<(Arc<Holder>, i64)>,
    /// Bells to ring once the transaction under way is committed.
    pub(super) rings: Vec<Ring>,
    /// The lock that was last found held or waited for: there the short way would fail.
    pub(super) crowded: Option<Name>,
    pub(super) chores: Arc<Chores>,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session").field("bell", &self.bell).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(
        mut connection: Connection,
        clock: Clock,
        viewer: Viewer,
        bell: &str,
        chores: Arc<Chores>,
    ) -> Result<Self, Fault> {
        let (told, mut growth) = (chores.clone(), Growth::of(&connection));
        connection.wal_hook(Some(move |_: &mut Wal, frames| {
            let frames = u32::try_from(frames).unwrap_or(0);
            told.wrote(frames);
            if growth.takes_the_last_room(frames) {
                told.set_full(true);
            }
            Ok(())
        }))?;
        let (ceiling, bell) = (0, bell.to_owned());
        let (clients, newcomers, rings, crowded) = Default::default();
        Ok(Self {
            connection,
            clock,
            viewer,
            bell,
            ceiling,
            clients,
            newcomers,
            rings,
            crowded,
            chores,
        })
    }

    pub(super) fn prepare(&self, sql: &str) -> Result<CachedStatement<'_>, Fault> {
        Ok(self.connection.prepare_cached(sql)?)
    }

    /// Runs `work` in a write transaction: committed as a whole, or rolled back.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.undo();
        self.prepare("begin immediate")?.execute(())?;
        let done = work(self).and_then(|value| {
            self.prepare("commit")?.execute(()).map_err(Fault::in_commit)?;
            Ok(value)
        });
        match &done {
            Ok(_) => self.committed(),
            Err(_) => self.undo(),
        }
        done
    }

    /// Runs `work` on one snapshot of the database.
    pub(super) fn read<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.undo();
        self.prepare("begin")?.execute(())?;
        let done = work(self);
        self.undo();
        done
    }

    pub(super) fn committed(&mut self) {
        // Labels may differ without end; the rows are found again.
        if self.clients.len() > 64 {
            self.clients.clear();
        }
        self.clients.append(&mut self.newcomers);
    }

    /// Leaves the connection usable, whatever happened on it (a panic included).
    fn undo(&mut self) {
        self.newcomers.clear();
        self.rings.clear();
        if !self.connection.is_autocommit() {
            // Fails only when SQLite has rolled back by itself.
            let _ = self.prepare("rollback").map(|mut rollback| rollback.execute(()));
        }
    }
}

impl SqliteStore {
    /// Runs a request. `work` begins anew when another process is in the way.
    ///
    /// Once begun on a blocking thread it goes on even if the future is dropped.
    pub(super) async fn run<T, W>(self: Arc<Self>, items: usize, mut work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnMut(&mut Session) -> Result<T, Fault> + Send + 'static,
    {
        // The semaphore is never closed. The turn goes along to the blocking thread, which
        // goes on even if this future is dropped.
        let asked = Instant::now();
        let turn = self.turns.clone().acquire_owned().await;
        if items <= INLINE_ITEMS && !self.chores.is_full() {
            for attempt in 0..INLINE_ATTEMPTS {
                match self.attempt(&mut work) {
                    Ok(value) => return Ok(value),
                    Err(Fault::Busy) => pause_inline(attempt),
                    Err(Fault::Ceiling(_)) => break,
                    Err(fault) if fault.is_full() => break,
                    Err(fault) => return Err(fault.into_error(&self.path)),
                }
            }
        }
        on_a_blocking_thread(move || {
            let _turn = turn;
            self.persevere(PATIENCE.saturating_sub(asked.elapsed()).max(LAST_PATIENCE), work)
        })
        .await
    }

    /// Runs what may take long, on a connection of its own, so that no lease waits for it.
    pub(super) async fn run_aside<T, W>(self: Arc<Self>, mut work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnMut(&mut Session) -> Result<T, Fault> + Send + 'static,
    {
        on_a_blocking_thread(move || {
            self.file.check(self.clock.now())?;
            insist(|| {
                let connection = schema::connect(&self.path)?;
                let (clock, viewer) = (self.clock.clone(), self.viewer.clone());
                // It only looks, and so needs no bell.
                work(&mut Session::new(connection, clock, viewer, "", self.chores.clone())?)
            })
            .map_err(|fault| fault.into_error(&self.path))
        })
        .await
    }

    /// Runs a request to its end on this thread, waiting for others.
    fn persevere<T>(
        &self,
        patience: Duration,
        mut work: impl FnMut(&mut Session) -> Result<T, Fault>,
    ) -> Result<T> {
        let mut attempt = || match self.attempt(&mut work) {
            Err(Fault::Ceiling(token)) => {
                self.session.lock().raise_ceiling(token)?;
                self.attempt(&mut work)
            }
            done => done,
        };
        insist_for(patience, || {
            if self.chores.is_full() {
                self.make_room()?;
            }
            match attempt() {
                Err(fault) if fault.is_full() => {
                    self.make_room()?;
                    attempt()
                }
                done => done,
            }
        })
        .map_err(|fault| fault.into_error(&self.path))
    }

    /// The disk is full, or nearly so: what is in the log is moved into the database, and the
    /// log begins anew in its own space. Nothing more is written until that is done.
    fn make_room(&self) -> Result<(), Fault> {
        self.chores.set_full(true);
        log::begin_anew(&self.session.lock().connection)?;
        self.chores.set_full(false);
        Ok(())
    }

    fn attempt<T>(
        &self,
        work: &mut impl FnMut(&mut Session) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut session = self.session.try_lock().ok_or(Fault::Busy)?;
        self.file.check(self.clock.now())?;
        // What a panic left open would swallow a statement that commits by itself.
        session.undo();
        let done = work(&mut session);
        let rings = std::mem::take(&mut session.rings);
        drop(session);
        let rang = !rings.is_empty();
        for ring in rings {
            self.bells.ring(&ring);
        }
        if rang {
            // The kernel likes to wake a process on the processor of whoever woke it:
            // let it begin, instead of waiting until we are done with what comes next.
            std::thread::yield_now();
        }
        done
    }
}

/// Runs `work` where it may block; on this thread if there is no runtime.
async fn on_a_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return work();
    };
    runtime.spawn_blocking(work).await.unwrap_or_else(|failure| {
        let error = Error::new(ErrorKind::NoRuntime, "the runtime was shut down meanwhile");
        // A blocking task is only cancelled before it begins.
        Err(if failure.is_cancelled() { error } else { error.outcome_unknown() })
    })
}

/// Repeats `work` while others are in the way, with short and jittered pauses.
pub(super) fn insist<T>(work: impl FnMut() -> Result<T, Fault>) -> Result<T, Fault> {
    insist_for(PATIENCE, work)
}

fn insist_for<T>(
    patience: Duration,
    mut work: impl FnMut() -> Result<T, Fault>,
) -> Result<T, Fault> {
    let (mut waited, mut longest) = (Duration::ZERO, FIRST_PAUSE);
    loop {
        match work() {
            Err(Fault::Busy | Fault::Ceiling(_)) if waited < patience => {
                let pause = longest.mul_f64(0.5 + fastrand::f64() / 2.0);
                std::thread::sleep(pause);
                waited += pause;
                longest = (longest * 2).min(LONGEST_PAUSE);
            }
            done => return done,
        }
    }
}

/// A few microseconds, in which the other's transaction may end.
fn pause_inline(attempt: u32) {
    for _ in 0..(64 << attempt) {
        std::hint::spin_loop();
    }
    std::thread::yield_now();
}
