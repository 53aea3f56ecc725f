//! How requests run: at once on the caller's thread (a transaction takes some ten microseconds,
//! a hop to another thread costs more), and on a blocking thread only when another process is in
//! the way.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::error::{Fault, PATIENCE, retry_while_busy};
use super::session::Session;
use super::{SqliteStore, log, schema};
use crate::error::{Error, ErrorKind, Result};

/// Requests with more items would keep an async thread from its other tasks.
const INLINE_ITEMS: usize = 64;
/// Another's transaction is over in microseconds: look again so often before hopping.
const INLINE_ATTEMPTS: u32 = 6;
/// For a request that waited for its blocking thread until its patience was over.
const LAST_PATIENCE: Duration = Duration::from_millis(10);

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
        if items <= INLINE_ITEMS && !self.is_full() {
            for attempt in 0..INLINE_ATTEMPTS {
                match self.attempt(&mut work) {
                    Ok(value) => return Ok(value),
                    Err(Fault::Busy) => {
                        // A few microseconds, in which the other's transaction may end.
                        (0..64 << attempt).for_each(|_| std::hint::spin_loop());
                        std::thread::yield_now();
                    }
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

    /// Runs a request that may take long, on a connection of its own: no lease waits for it.
    pub(super) async fn run_separately<T, W>(self: Arc<Self>, mut work: W) -> Result<T>
    where
        T: Send + 'static,
        W: FnMut(&mut Session) -> Result<T, Fault> + Send + 'static,
    {
        on_a_blocking_thread(move || {
            self.file.check(self.clock.now())?;
            retry_while_busy(PATIENCE, || {
                let connection = schema::connect(&self.path)?;
                let (clock, viewer) = (self.clock.clone(), self.viewer.clone());
                // It only looks, and so needs no bell.
                work(&mut Session::new(connection, clock, viewer, ""))
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
        retry_while_busy(patience, || {
            if self.is_full() {
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

    /// Moves the log into the database, because the disk is full, or nearly so. The log then
    /// begins anew in its own space. Nothing more is written until that is done.
    fn make_room(&self) -> Result<(), Fault> {
        self.chores.full.store(true, Ordering::Relaxed);
        log::begin_anew(&self.session.lock().connection)?;
        self.chores.full.store(false, Ordering::Relaxed);
        Ok(())
    }

    fn is_full(&self) -> bool {
        self.chores.full.load(Ordering::Relaxed)
    }

    fn attempt<T>(
        &self,
        work: &mut impl FnMut(&mut Session) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        let mut session = self.session.try_lock().ok_or(Fault::Busy)?;
        self.file.check(self.clock.now())?;
        // A transaction that a panic left open would swallow a statement that commits by itself.
        session.undo();
        let done = work(&mut session);
        let rings = std::mem::take(&mut session.rings);
        drop(session);
        for (bell, owner) in &rings {
            self.bells.ring(bell, *owner);
        }
        if !rings.is_empty() {
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
