//! Opening the database: is it ours, is it of this version? Nothing is written to a file
//! before it is known to be ours.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags, params};

use super::error::Fault;
use super::{access, log, token};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};

/// "LSHD": marks a database as Leasehold's.
pub(super) const APPLICATION: i64 = 0x4C53_4844;
/// The version of `schema.sql`.
pub(super) const VERSION: i64 = 1;

const SCHEMA: &str = include_str!("schema.sql");

/// The first SQLite without the WAL-reset bug, which could corrupt the database.
const OLDEST_SQLITE: i32 = 3_051_003;

/// Opens the database, and creates it for this boot if it is not there.
pub(super) fn open(path: &Path, clock: &Clock, boot: &str) -> Result<Connection, Fault> {
    let connection = connect(path)?;
    let is_new = look(&connection, path)?;
    use_wal(&connection, path)?;
    // At once: until then users of another first group cannot write to the log.
    access::share_log(path);
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
    let connection = open_file(path)?;
    configure(&connection)?;
    Ok(connection)
}

/// The same for the only process that has the file open; otherwise the file is busy. Others
/// find it busy until this connection is dropped.
pub(super) fn connect_alone(path: &Path) -> Result<Connection, Fault> {
    let connection = open_file(path)?;
    // Before anything is read: only then does SQLite lock the whole file for it, which those
    // who have it open, each with a lock of its own, do not allow.
    connection.pragma_update(None, "locking_mode", "exclusive")?;
    configure(&connection)?;
    Ok(connection)
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
        return Err(Error::new(ErrorKind::Unusable, message).into());
    }
    connection.busy_timeout(Duration::ZERO)?;
    Ok(connection)
}

fn configure(connection: &Connection) -> Result<(), Fault> {
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
    Ok(())
}

/// Identifies the file on one snapshot: its marks of before and its tables of after another
/// process created them would look like a database of someone else.
fn look(connection: &Connection, path: &Path) -> Result<bool, Fault> {
    connection.execute_batch("begin")?;
    let is_new = identify(connection, path);
    if !connection.is_autocommit() {
        connection.execute_batch("rollback")?;
    }
    is_new
}

/// Whether the file is new; an error if it is not for us. Inside a transaction.
pub(super) fn identify(connection: &Connection, path: &Path) -> Result<bool, Fault> {
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
        return Err(Error::new(ErrorKind::Unusable, message).into());
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
pub(super) fn write_to_disk(
    connection: &Connection,
    work: impl FnOnce() -> Result<(), Fault>,
) -> Result<(), Fault> {
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch("begin immediate")?;
    let written =
        work().and_then(|()| connection.execute_batch("commit").map_err(Fault::in_commit));
    if !connection.is_autocommit() {
        connection.execute_batch("rollback")?;
    }
    connection.pragma_update(None, "synchronous", "normal")?;
    written
}

fn create(connection: &Connection, path: &Path, clock: &Clock, boot: &str) -> Result<(), Fault> {
    // Another process may have been here since we looked.
    if !identify(connection, path)? {
        return Ok(());
    }
    connection.execute_batch(SCHEMA)?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", VERSION)?;
    connection.execute(
        "insert into meta values (1, ?1, 0, ?2)",
        params![boot, token::ceiling_above(0, clock)],
    )?;
    Ok(())
}

pub(super) fn refuse_old_sqlite(number: i32, version: &str) -> Result<(), Fault> {
    if number >= OLDEST_SQLITE {
        return Ok(());
    }
    let message = format!(
        "SQLite {version} can corrupt a write-ahead log that several processes use; \
         build with the bundled SQLite, 3.51.3 or newer"
    );
    Err(Error::new(ErrorKind::Refused, message).into())
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
