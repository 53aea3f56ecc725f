//! Looking at locks, without touching them.

use rusqlite::{OptionalExtension, params};

use super::connection::Session;
use super::error::Fault;
use super::row::{nanos, wall};
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::clock::Moment;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

pub(super) fn inspect(session: &mut Session, name: &Name) -> Result<Option<LockInfo>, Fault> {
    session.read(|session| {
        let now = session.clock.now();
        let info = info(session, name, now)?;
        let known = session.lock_row(name)?.is_some() || info.waiters > 0 || info.forced.is_some();
        Ok(known.then_some(info))
    })
}

pub(super) fn list(session: &mut Session, prefix: &str) -> Result<Vec<LockInfo>, Fault> {
    session.read(|session| {
        let now = session.clock.now();
        let names = names(session, prefix, now)?;
        names.iter().map(|name| info(session, name, now)).collect()
    })
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
    let lease = match session.lock_row(name)?.filter(|row| row.is_live(now)) {
        None => None,
        Some(row) => {
            let by = session.held_by(&row)?;
            Some(LeaseInfo::new(row.owner, Some(row.token), by, Some(now.until(row.expires))))
        }
    };
    let count = "select count(*) from waiters where lock = ?1 and alive_until > ?2";
    let waiters: u32 =
        session.prepare(count)?.query_row(params![name.as_str(), nanos(now)], |row| row.get(0))?;
    Ok(LockInfo {
        lease,
        waiters: waiters as usize,
        forced: last_forced(session, name)?,
        ..LockInfo::free(name.clone())
    })
}

fn last_forced(session: &Session, name: &Name) -> Result<Option<ForcedInfo>, Fault> {
    let find = "select by, reason, at, token from audit where lock = ?1 \
                order by token desc limit 1";
    let read = |row: &rusqlite::Row<'_>| {
        let forced = Forced::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?);
        let token = Token::new(row.get::<_, i64>(3)? as u64);
        Ok(ForcedInfo::new(forced, wall(row.get(2)?), token))
    };
    Ok(session.prepare(find)?.query_row([name.as_str()], read).optional()?)
}
