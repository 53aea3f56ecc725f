//! Opening the database: is it ours, is it of this version, and which boot does it belong to?
//! Nothing is written to a file before it is known to be ours.
//!
//! Leases of an earlier boot are void, since no process of it is alive. But another boot id is no
//! proof of an earlier boot: a container may have one of its own. So only a process that has the
//! file to itself voids anything.

use std::path::Path;
use std::time::Duration;

use rusqlite::{
    Connection, OpenFlags, OptionalExtension, Transaction, TransactionBehavior, params,
};

use super::error::{Fault, PATIENCE, retry_while_busy};
use super::log;
use super::path::share_log;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::token::Token;

/// "LSHD": marks a database as Leasehold's.
const APPLICATION: i64 = 0x4C53_4844;
/// The version of `schema.sql`.
pub(super) const VERSION: i64 = 1;

/// The first SQLite without the WAL-reset bug, which could corrupt the database.
const OLDEST_SQLITE: i32 = 3_051_003;

/// Pauses between two tries to be alone. They grow long against the time for which a try has
/// the file open (a millisecond), so that many processes that start together after a boot do
/// not keep each other out.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// After so many pauses the others are no newcomers but use the file.
const NEWCOMERS: Duration = Duration::from_secs(3);

/// How far the ceiling is raised above the clock, in microseconds: one minute.
const HEADROOM: u64 = 60_000_000;
/// How far it is raised above a token that is ahead of the clock. Such tokens count up by one,
/// so this is many; and boots that come after each other (or containers that take turns, each
/// with its own boot id) do not carry the tokens away from the clock.
const STEP: u64 = 10_000;
/// Less than this below the ceiling, housekeeping raises it.
const LOW: u64 = 30_000_000;

/// Opens the database for this boot: creates it if it is not there, and voids what an
/// earlier boot left.
pub(super) fn open(path: &Path, clock: &Clock, boot: &str) -> Result<Connection, Fault> {
    refuse_old_sqlite(rusqlite::version_number(), rusqlite::version())?;
    let (mut waited, mut longest) = (Duration::ZERO, FIRST_PAUSE);
    loop {
        let opened = retry_while_busy(PATIENCE, || {
            let connection = open_or_create(path, clock, boot)?;
            let ours = boot_of(&connection)?.as_deref() == Some(boot);
            Ok(ours.then_some(connection))
        })?;
        if let Some(connection) = opened {
            return Ok(connection);
        }
        match begin_boot(path, clock, boot) {
            // Looked at again: perhaps another process was faster.
            Ok(()) => {}
            Err(Fault::Busy) if waited < NEWCOMERS => {
                let pause = longest.mul_f64(fastrand::f64());
                std::thread::sleep(pause);
                waited += pause;
                longest = (longest * 2).min(LONGEST_PAUSE);
            }
            Err(Fault::Busy) => {
                let path = path.display();
                let message = format!(
                    "other processes have {path} open under another boot id: this is no new boot, \
                     but a container (systemd-nspawn, LXC) with a boot id of its own, and their \
                     locks would be void; give all of them the machine's \
                     /proc/sys/kernel/random/boot_id, or use a server (Redis, PostgreSQL, etcd); \
                     right after a boot, end what else has it open (`fuser {path}`)"
                );
                return Err(Error::new(ErrorKind::Refused, message).into());
            }
            Err(fault) => return Err(fault),
        }
    }
}

fn boot_of(connection: &Connection) -> Result<Option<String>, Fault> {
    Ok(connection.query_row("select boot from meta", (), |row| row.get(0)).optional()?)
}

/// Voids what another boot left, if no other process has the file open; else it is busy. The
/// kernel keeps SQLite's locks, so that processes of other containers are seen as well.
fn begin_boot(path: &Path, clock: &Clock, boot: &str) -> Result<(), Fault> {
    let connection = connect_alone(path)?;
    write_to_disk(&connection, || {
        // Another process may have been here since we looked.
        if identify(&connection, path)? || boot_of(&connection)?.as_deref() == Some(boot) {
            return Ok(());
        }
        // A power cut may have taken the last tokens with it, but none beyond the ceiling.
        let ceiling: i64 =
            connection.query_row("select max(floor, ceiling) from meta", (), |row| row.get(0))?;
        connection.execute(
            "update meta set boot = ?1, floor = ?2, ceiling = ?3",
            params![boot, ceiling, ceiling_above(ceiling, clock)],
        )?;
        connection.execute_batch(
            "update locks set owner = null, client = null, expires = 0;
         delete from waiters; delete from bars; delete from clients;",
        )?;
        Ok(())
    })
}

/// Opens the database, and creates it for this boot if it is not there.
fn open_or_create(path: &Path, clock: &Clock, boot: &str) -> Result<Connection, Fault> {
    let connection = connect(path)?;
    // On one snapshot: its marks of before and its tables of after another process created them
    // would look like a database of someone else.
    let snapshot = connection.unchecked_transaction()?;
    let is_new = identify(&snapshot, path)?;
    drop(snapshot);
    use_wal(&connection, path)?;
    // At once: until then users of another first group cannot write to the log.
    share_log(path);
    if is_new {
        write_to_disk(&connection, || create(&connection, path, clock, boot))?;
        // A log that cannot be moved into the database for want of room would stay for ever:
        // from here on most of its pages have their place. If another process is at it, so much
        // the better.
        let _ = log::checkpoint(&connection);
    }
    Ok(connection)
}

/// A connection with our settings; never waits for others by itself.
pub(super) fn connect(path: &Path) -> Result<Connection, Fault> {
    configure(open_file(path)?)
}

/// The same for the only process that has the file open; otherwise the file is busy. Others
/// find it busy until this connection is dropped.
fn connect_alone(path: &Path) -> Result<Connection, Fault> {
    let connection = open_file(path)?;
    // Before anything is read: only then does SQLite lock the whole file for it. Processes that
    // have it open, each with a lock of its own, do not allow that.
    connection.pragma_update(None, "locking_mode", "exclusive")?;
    configure(connection)
}

fn open_file(path: &Path) -> Result<Connection, Fault> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_CREATE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    // SQLite falls back to reading, and the first acquire would find out.
    if connection.is_readonly("main")? {
        let message = format!(
            "{} cannot be opened for writing; file and directory must be writable for this user",
            path.display()
        );
        return Err(Error::new(ErrorKind::Unusable, message).not_applied().into());
    }
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

fn configure(connection: Connection) -> Result<Connection, Fault> {
    connection.set_prepared_statement_cache_capacity(64);
    // A frame of the log is a page, and a lock is a hundred bytes: small pages are written
    // and checked faster, larger ones are fewer when many locks change at once. Only a new
    // file takes it.
    connection.pragma_update(None, "page_size", 2048)?;
    // A checkpoint calls fsync: it belongs to the housekeeping thread.
    connection.pragma_update(None, "wal_autocheckpoint", 0)?;
    connection.pragma_update(None, "journal_size_limit", log::LARGEST_IDLE)?;
    connection.pragma_update(None, "temp_store", "memory")?;
    connection.pragma_update(None, "synchronous", "normal")?;
    Ok(connection)
}

/// Whether the file is new; an error if it is not for us. Inside a transaction.
fn identify(connection: &Connection, path: &Path) -> Result<bool, Fault> {
    let number = |pragma| connection.pragma_query_value(None, pragma, |row| row.get::<_, i64>(0));
    let (application, version) = (number("application_id")?, number("user_version")?);
    let objects: i64 =
        connection.query_row("select count(*) from sqlite_schema", (), |row| row.get(0))?;
    let path = path.display();
    if application == 0 && version == 0 && objects == 0 {
        return Ok(true);
    }
    if application != APPLICATION {
        let message = format!(
            "{path} is a database of another application; choose another path, it was left as it is"
        );
        return Err(Error::new(ErrorKind::Refused, message).into());
    }
    if version > VERSION {
        let message = format!(
            "{path} was written by a newer Leasehold (schema {version}, this one knows {VERSION}); \
             upgrade this program, the file was left as it is"
        );
        return Err(Error::new(ErrorKind::Unusable, message).not_applied().into());
    }
    Ok(false)
}

fn use_wal(connection: &Connection, path: &Path) -> Result<(), Fault> {
    let mode: String =
        connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode == "wal" {
        return Ok(());
    }
    let message = format!(
        "{} cannot use a write-ahead log here (it stays in mode {mode}); use a local disk",
        path.display()
    );
    Err(Error::new(ErrorKind::Refused, message).into())
}

/// Runs `work` in a transaction that is on the disk once it is committed.
pub(super) fn write_to_disk<T>(
    connection: &Connection,
    work: impl FnOnce() -> Result<T, Fault>,
) -> Result<T, Fault> {
    connection.pragma_update(None, "synchronous", "full")?;
    let begun = Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
    let written = begun.map_err(Fault::from).and_then(|transaction| {
        let value = work()?;
        transaction.commit().map_err(|error| Fault::from(error).in_commit())?;
        Ok(value)
    });
    connection.pragma_update(None, "synchronous", "normal")?;
    written
}

fn create(connection: &Connection, path: &Path, clock: &Clock, boot: &str) -> Result<(), Fault> {
    // Another process may have been here since we looked.
    if !identify(connection, path)? {
        return Ok(());
    }
    connection.execute_batch(include_str!("sql/schema.sql"))?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.execute(
        "insert into meta values (1, ?1, 0, ?2)",
        params![boot, ceiling_above(0, clock)],
    )?;
    Ok(())
}

fn refuse_old_sqlite(number: i32, version: &str) -> Result<(), Fault> {
    if number >= OLDEST_SQLITE {
        return Ok(());
    }
    let message = format!(
        "SQLite {version} can corrupt a write-ahead log that several processes use; \
         build with the bundled SQLite, 3.51.3 or newer"
    );
    Err(Error::new(ErrorKind::Refused, message).into())
}

/// The clock as the lowest token; a clock that is not believed counts as zero.
pub(super) fn clock_floor(clock: &Clock) -> i64 {
    Token::after(Token::new(0), clock.wall_micros()).map_or(1, |token| token.get() as i64)
}

/// A ceiling above this token and the clock.
pub(super) fn ceiling_above(token: i64, clock: &Clock) -> i64 {
    let above_clock = (clock_floor(clock) as u64).saturating_add(HEADROOM);
    let above_token = (token as u64).saturating_add(STEP);
    above_clock.max(above_token).min(Token::MAX_PORTABLE.get()) as i64
}

/// Whether the clock comes near the ceiling.
pub(super) fn is_low(ceiling: i64, clock: &Clock) -> bool {
    (ceiling as u64) < (clock_floor(clock) as u64).saturating_add(LOW)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_sqlite_with_the_wal_reset_bug_is_refused() {
        assert!(refuse_old_sqlite(3_051_002, "3.51.2").is_err());
        assert!(refuse_old_sqlite(3_051_003, "3.51.3").is_ok());
    }
}
