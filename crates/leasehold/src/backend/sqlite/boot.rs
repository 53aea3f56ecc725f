//! Which boot the database belongs to. What an earlier boot left is void, since nobody of it
//! is alive. But another boot id is no proof of an earlier boot: a container may have one of
//! its own. So only a process that has the file to itself voids anything.

use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, params};

use super::connection::insist;
use super::error::Fault;
use super::{schema, token};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind};

/// Pauses between two tries to be alone. They grow long against the time for which a try has
/// the file open (a millisecond), so that many processes that start together after a boot do
/// not keep each other out.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(100);
/// After so many pauses the others are no newcomers but use the file.
const PATIENCE: Duration = Duration::from_secs(3);

/// Opens the database for this boot: creates it if it is not there, and voids what an
/// earlier boot left.
pub(super) fn open(path: &Path, clock: &Clock, boot: &str) -> Result<Connection, Fault> {
    schema::refuse_old_sqlite(rusqlite::version_number(), rusqlite::version())?;
    let (mut waited, mut longest) = (Duration::ZERO, FIRST_PAUSE);
    loop {
        let opened = insist(|| {
            let connection = schema::open(path, clock, boot)?;
            let ours = boot_of(&connection)?.as_deref() == Some(boot);
            Ok(ours.then_some(connection))
        })?;
        if let Some(connection) = opened {
            return Ok(connection);
        }
        match begin(path, clock, boot) {
            // Looked at again: perhaps another process was faster.
            Ok(()) => {}
            Err(Fault::Busy) if waited < PATIENCE => {
                let pause = longest.mul_f64(fastrand::f64());
                std::thread::sleep(pause);
                waited += pause;
                longest = (longest * 2).min(LONGEST_PAUSE);
            }
            Err(Fault::Busy) => return Err(in_use(path).into()),
            Err(fault) => return Err(fault),
        }
    }
}

fn boot_of(connection: &Connection) -> Result<Option<String>, Fault> {
    Ok(connection.query_row("select boot from meta", (), |row| row.get(0)).optional()?)
}

/// Voids what another boot left, if no other process has the file open; else it is busy. The
/// kernel keeps SQLite's locks, so that processes of other containers are seen as well.
fn begin(path: &Path, clock: &Clock, boot: &str) -> Result<(), Fault> {
    let connection = schema::connect_alone(path)?;
    schema::write_to_disk(&connection, || {
        // Another process may have been here since we looked.
        if schema::identify(&connection, path)? || boot_of(&connection)?.as_deref() == Some(boot) {
            return Ok(());
        }
        void(&connection, clock, boot)
    })
}

fn void(connection: &Connection, clock: &Clock, boot: &str) -> Result<(), Fault> {
    // A power cut may have taken the last tokens with it, but none beyond the ceiling.
    let ceiling: i64 =
        connection.query_row("select max(floor, ceiling) from meta", (), |row| row.get(0))?;
    connection.execute(
        "update meta set boot = ?1, floor = ?2, ceiling = ?3",
        params![boot, ceiling, token::ceiling_above(ceiling, clock)],
    )?;
    connection.execute_batch(
        "update locks set owner = null, client = null, expires = 0;
         delete from waiters; delete from bars; delete from clients;",
    )?;
    Ok(())
}

fn in_use(path: &Path) -> Error {
    let path = path.display();
    let message = format!(
        "other processes have {path} open under another boot id: this is no new boot, but a \
         container (systemd-nspawn, LXC) with a boot id of its own, and their locks would be \
         void; give all of them the machine's /proc/sys/kernel/random/boot_id, or use a server \
         (Redis, PostgreSQL, etcd); right after a boot, end what else has it open (`fuser {path}`)"
    );
    Error::new(ErrorKind::Refused, message)
}
