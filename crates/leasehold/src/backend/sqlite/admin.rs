//! What an administrator asks for: looking at locks without touching them, taking a lock away
//! from its holder, and what `doctor` shows.

use std::path::Path;
use std::sync::Arc;

use rusqlite::params;

use super::error::Fault;
use super::path::beside;
use super::row::{LockRow, nanos};
use super::session::Session;
use super::{SqliteStore, file, schema};
use crate::backend::kit::time;
use crate::backend::{Finding, ForcedInfo, LeaseInfo, LockInfo};
use crate::clock::Moment;
use crate::error::Result;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// A log beyond this means that checkpoints do not get through.
const LONG_LOG: u64 = 64 << 20;
/// Too little to go on with.
const LITTLE_SPACE: u64 = 16 << 20;

pub(super) async fn inspect(store: Arc<SqliteStore>, name: Name) -> Result<Option<LockInfo>> {
    let look = move |session: &mut Session| {
        session.read(|session| {
            let info = info(session, &name, session.clock.now())?;
            let is_known = session.lock_row(&name)?.is_some();
            Ok((is_known || info.waiters > 0 || info.forced.is_some()).then_some(info))
        })
    };
    store.run(1, look).await
}

pub(super) async fn list(store: Arc<SqliteStore>, prefix: String) -> Result<Vec<LockInfo>> {
    let look = move |session: &mut Session| {
        session.read(|session| {
            let now = session.clock.now();
            let names = names(session, &prefix, now)?;
            names.iter().map(|name| info(session, name, now)).collect()
        })
    };
    store.run_separately(look).await
}

/// What is held or waited for, in order. The prefix is compared here, not by LIKE:
/// `%` and `_` are characters like any other.
fn names(session: &Session, prefix: &str, now: Moment) -> Result<Vec<Name>, Fault> {
    const SQL: &str = "select name from locks \
         where name >= ?1 and owner is not null and expires > ?2 \
         union select lock from waiters where lock >= ?1 and alive_until > ?2 order by 1";
    let mut statement = session.prepare(SQL)?;
    let mut rows = statement.query(params![prefix, nanos(now)])?;
    let mut names = Vec::new();
    while let Some(row) = rows.next()? {
        let name: String = row.get(0)?;
        if !name.starts_with(prefix) {
            break;
        }
        names.extend(Name::new(name));
    }
    Ok(names)
}

fn info(session: &Session, name: &Name, now: Moment) -> Result<LockInfo, Fault> {
    let mut info = LockInfo::free(name.clone());
    if let Some(row) = session.lock_row(name)?.filter(|row| row.is_live(now)) {
        let (by, remaining) = (session.held_by(&row)?, now.until(row.expires));
        info.leases.push(LeaseInfo::new(row.owner, Some(row.token), by, Some(remaining)));
    }
    let count = "select count(*) from waiters where lock = ?1 and alive_until > ?2";
    let waiting = params![name.as_str(), nanos(now)];
    info.waiters = session.prepare(count)?.query_row(waiting, |row| row.get::<_, u32>(0))? as usize;
    let last_forced = "select by, reason, at, token from audit where lock = ?1 \
                       order by token desc limit 1";
    info.forced = session.find(last_forced, [name.as_str()], |row| {
        let forced = Forced::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?);
        let token = Token::new(row.get::<_, i64>(3)? as u64);
        Ok(ForcedInfo::new(forced, time::at(row.get(2)?), token))
    })?;
    Ok(info)
}

/// Takes a lock away from its holder: recorded, and told to both sides.
pub(super) async fn force_release(
    store: Arc<SqliteStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    let release = move |session: &mut Session| {
        session.write(|session| {
            let now = session.clock.now();
            let held = session.lock_row(&name)?.filter(|row| row.is_live(now));
            if let Some(LockRow { owner: Some(owner), token, client, .. }) = held {
                let record = "insert into audit (at, lock, owner, token, by, reason) \
                              values (?1, ?2, ?3, ?4, ?5, ?6)";
                let (at, lock) = (session.clock.wall_micros() as i64, name.as_str());
                let (id, number) = (owner.to_bytes(), token.get() as i64);
                let values = params![at, lock, id, number, forced.by, forced.reason];
                session.execute(record, values)?;
                session.write_free(&name, now)?;
                if let Some(client) = session.client(client)? {
                    session.rings.push((client.bell, owner));
                }
            }
            session.serve(&name, now)?;
            Ok(held.map(|row| row.token))
        })
    };
    store.run(1, release).await
}

pub(super) async fn examine(store: Arc<SqliteStore>) -> Result<Vec<Finding>> {
    let path = store.path.clone();
    store.run_separately(move |session| findings(session, &path)).await
}

fn findings(session: &Session, path: &Path) -> Result<Vec<Finding>, Fault> {
    let version: i64 = session.connection.pragma_query_value(None, "user_version", |r| r.get(0))?;
    let check: String = session.connection.pragma_query_value(None, "quick_check", |r| r.get(0))?;
    let (sqlite, ours) = (rusqlite::version(), schema::VERSION);
    let mut findings = vec![
        Finding::fine(format!("database {}", path.display())),
        Finding::fine(format!("SQLite {sqlite}, schema {version} of {ours}")),
        match check.as_str() {
            "ok" => Finding::fine("the database is sound"),
            damage => Finding::danger(
                format!("the database is damaged: {damage}"),
                "stop all processes that use it, then restore or remove it",
            ),
        },
        log(path),
    ];
    // All of these may have come since it was opened.
    let refusals = [
        (
            file::refuse_second_name(path),
            "remove the other names before a process opens it by one of them",
        ),
        (
            file::refuse_mounts(path),
            "stop all processes that use it, unmount the file, and mount its directory instead",
        ),
        (
            file::refuse_shared_disks(path),
            "stop all processes that use it, and move it to a local disk",
        ),
    ];
    for (refusal, advice) in refusals {
        if let Err(error) = refusal {
            findings.push(Finding::danger(error.to_string(), advice));
        }
    }
    findings.extend(path.parent().and_then(file::disk).map(|(kind, free)| disk(kind, free)));
    Ok(findings)
}

fn log(path: &Path) -> Finding {
    // Its size alone: opening it would drop SQLite's locks.
    let bytes = std::fs::metadata(beside(path, "-wal")).map_or(0, |log| log.len());
    let what = format!("write-ahead log of {} KiB", bytes >> 10);
    if bytes < LONG_LOG {
        return Finding::fine(what);
    }
    let advice = "it cannot be checkpointed: look for a process that keeps a transaction open";
    Finding::warning(what, advice)
}

fn disk(kind: u32, free: u64) -> Finding {
    let what = format!("local file system (type {kind:#x}), {} MiB free", free >> 20);
    if free >= LITTLE_SPACE {
        return Finding::fine(what);
    }
    Finding::warning(what, "when the disk is full no lock can be taken: make room")
}
