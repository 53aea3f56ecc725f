//! The write-ahead log: how long it may grow, and how it begins anew. SQLite reuses its space
//! once all of it is in the database, so a log that does not grow needs no room on the disk.

use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::error::Fault;
use super::filesystem;

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
    if run(connection, "passive")?.frames > LONGEST {
        run(connection, "restart")?;
    }
    Ok(())
}

/// The same, where another process did not do it just now.
pub(super) fn checkpoint_if_long(connection: &Connection) -> Result<(), Fault> {
    let log = run(connection, "noop")?;
    if log.frames - log.saved >= WORTH_IT {
        checkpoint(connection)?;
    }
    Ok(())
}

/// Begins the log anew, however short it is: the disk is full. It keeps its space, which
/// others would take and not give back.
pub(super) fn begin_anew(connection: &Connection) -> Result<(), Fault> {
    run(connection, "passive")?;
    // Where others are in the way, one of the next writers does it.
    run(connection, "restart")?;
    Ok(())
}

struct Log {
    frames: i64,
    /// How many of them are in the database.
    saved: i64,
}

fn run(connection: &Connection, mode: &str) -> Result<Log, Fault> {
    let sql = format!("pragma wal_checkpoint({mode})");
    // Before the first transaction there is no log: both are -1.
    let read = |row: &rusqlite::Row<'_>| Ok(Log { frames: row.get(1)?, saved: row.get(2)? });
    Ok(connection.query_row(&sql, (), read)?)
}

/// How long the log has grown.
#[derive(Debug)]
pub(super) struct Growth {
    folder: Option<PathBuf>,
    longest: u32,
}

impl Growth {
    /// The growth of this connection's log from now on.
    pub(super) fn of(connection: &Connection) -> Self {
        let folder = connection.path().and_then(|path| Path::new(path).parent());
        Self { folder: folder.map(Path::to_owned), longest: 0 }
    }

    /// Whether a log of so many frames took room that the database may need. Looks at the disk
    /// only where the log is longer than ever.
    pub(super) fn takes_the_last_room(&mut self, frames: u32) -> bool {
        if frames <= self.longest {
            return false;
        }
        self.longest = frames;
        let found = self.folder.as_deref().and_then(filesystem::look);
        found.is_some_and(|(_, free)| free < RESERVE)
    }
}
