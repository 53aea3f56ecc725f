//! The write-ahead log: how long it may grow, how it begins anew, and when housekeeping is
//! called for that. SQLite reuses its space once all of it is in the database, so a log that does
//! not grow needs no room on the disk.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::error::Fault;
use super::file;

/// From so many frames on, housekeeping is called, and again after as many: 4 MiB.
pub(super) const CHECKPOINT_EVERY: u32 = 2_048;
/// From so many frames on that are not in the database, a checkpoint is worth its fsync.
const WORTH_IT: i64 = 1_024;
/// With writers that never rest, a passive checkpoint never finds the log's end: from
/// this many frames on they are held up for a moment, or the log would grow for ever.
const LONGEST: i64 = 6_000;
/// A log that grew longer than usual shrinks to so many bytes when it begins anew.
pub(super) const LARGEST_IDLE: i64 = 16 << 20;
/// The log leaves so many bytes of the disk to the database. Without room to grow by, the
/// database cannot take in the log, and a log that is not taken in stays as it is for ever.
const RESERVE: u64 = 1 << 20;

/// Moves the log into the database, so that the next writer can begin it anew.
pub(super) fn checkpoint(connection: &Connection) -> Result<(), Fault> {
    if run(connection, "passive")?.0 > LONGEST {
        run(connection, "restart")?;
    }
    Ok(())
}

/// The same, where another process did not do it just now.
pub(super) fn checkpoint_if_long(connection: &Connection) -> Result<(), Fault> {
    let (frames, saved) = run(connection, "noop")?;
    if frames - saved >= WORTH_IT { checkpoint(connection) } else { Ok(()) }
}

/// Begins the log anew, however short it is: the disk is full. It keeps its space, which
/// others would take and not give back.
pub(super) fn begin_anew(connection: &Connection) -> Result<(), Fault> {
    run(connection, "passive")?;
    // Where others are in the way, one of the next writers does it.
    run(connection, "restart").map(drop)
}

/// How many frames the log has, and how many of them are in the database.
fn run(connection: &Connection, mode: &str) -> Result<(i64, i64), Fault> {
    let sql = format!("pragma wal_checkpoint({mode})");
    // Before the first transaction there is no log: both are -1.
    Ok(connection.query_row(&sql, (), |row| Ok((row.get(1)?, row.get(2)?)))?)
}

/// What the store tells its housekeeping thread.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// How many transactions were committed so far.
    pub(super) writes: AtomicU32,
    /// How long the log was after the last of them.
    frames: AtomicU32,
    /// The disk is full, or nearly so: the log must be moved into the database before anything
    /// else is written.
    pub(super) full: AtomicBool,
    wish: Mutex<Wish>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Wish {
    checkpoint: bool,
    stop: bool,
}

/// Why the housekeeping thread woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// The log is long.
    Checkpoint,
    /// It is time for the rest, too.
    Tick,
}

impl Chores {
    /// Hears of each transaction that this connection commits from now on.
    pub(super) fn watch(self: &Arc<Self>, connection: &mut Connection) -> rusqlite::Result<()> {
        let chores = self.clone();
        let folder = connection.path().and_then(|path| Path::new(path).parent());
        let folder = folder.map(Path::to_owned);
        let mut longest = 0;
        connection.wal_hook(Some(move |_: &mut Wal, frames| {
            let frames = u32::try_from(frames).unwrap_or(0);
            chores.wrote(frames);
            // Looks at the disk only where the log is longer than ever.
            if frames > longest {
                longest = frames;
                let found = folder.as_deref().and_then(file::disk);
                if found.is_some_and(|(_, free)| free < RESERVE) {
                    chores.full.store(true, Ordering::Relaxed);
                }
            }
            Ok(())
        }))
    }

    /// A transaction was committed. The log has so many frames now, whichever process wrote
    /// them: many processes that write little make it long, too.
    fn wrote(&self, frames: u32) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let before = self.frames.swap(frames, Ordering::Relaxed);
        if before / CHECKPOINT_EVERY < frames / CHECKPOINT_EVERY {
            self.wish.lock().checkpoint = true;
            self.called.notify_one();
        }
    }

    /// Waits for what is to be done next; `None` when the store is gone.
    pub(super) fn next_call(&self, tick: Instant) -> Option<Call> {
        let mut wish = self.wish.lock();
        let is_idle = |wish: &mut Wish| !wish.stop && !wish.checkpoint;
        self.called.wait_while_until(&mut wish, is_idle, tick);
        wish.checkpoint = false;
        let call = if Instant::now() >= tick { Call::Tick } else { Call::Checkpoint };
        (!wish.stop).then_some(call)
    }

    /// The store is dropped.
    pub(super) fn stop(&self) {
        self.wish.lock().stop = true;
        self.called.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_store_that_never_rests_is_swept_too() {
        let chores = Chores::default();
        chores.wrote(CHECKPOINT_EVERY - 1);
        chores.wrote(CHECKPOINT_EVERY);
        let tick = Instant::now() + Duration::from_secs(10);
        assert_eq!(chores.next_call(tick), Some(Call::Checkpoint));
        chores.wrote(2 * CHECKPOINT_EVERY);
        assert_eq!(chores.next_call(Instant::now()), Some(Call::Tick), "due, though called");
        chores.stop();
        assert_eq!(chores.next_call(Instant::now()), None);
    }
}
