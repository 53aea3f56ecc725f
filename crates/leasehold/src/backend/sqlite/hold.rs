//! Keeping a lease, giving it back, and hearing that it may be over.

use std::pin::pin;
use std::sync::Arc;

use rusqlite::params;

use super::error::Fault;
use super::row::{LockRow, nanos};
use super::session::Session;
use super::{SqliteStore, file};
use crate::backend::{Hint, Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

pub(super) async fn renew(store: Arc<SqliteStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let items = holds.len();
    let work = move |session: &mut Session| {
        session.write(|session| {
            // One look at the clock, before the first lease is proved, dates them all.
            let at = session.clock.now();
            let mut statement = session.prepare(include_str!("sql/renew.sql"))?;
            let mut renew = |hold: &Hold| {
                let (owner, token) = (hold.owner.to_bytes(), hold.token.get() as i64);
                let (now, expires) = (nanos(at), nanos(at + hold.ttl));
                let lease = params![hold.name.as_str(), owner, token, now, expires];
                if statement.execute(lease)? == 1 {
                    return Ok(Renewal::Renewed(Proof { at, valid_for: hold.ttl }));
                }
                Ok(Renewal::NotYours(why_lost(session, hold)?))
            };
            holds.iter().map(&mut renew).collect()
        })
    };
    store.run(items, work).await
}

fn why_lost(session: &Session, hold: &Hold) -> Result<LossReason, Fault> {
    let find = "select by, reason from audit where lock = ?1 and token = ?2";
    let lease = params![hold.name.as_str(), hold.token.get() as i64];
    let read = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
    if let Some((by, reason)) = session.find::<(String, String)>(find, lease, read)? {
        return Ok(LossReason::Forced(Forced::new(by, reason)));
    }
    let taken = session.lock_row(&hold.name)?.is_some_and(|row| row.token > hold.token);
    Ok(if taken { LossReason::Taken } else { LossReason::Expired })
}

pub(super) async fn release(store: Arc<SqliteStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    const SQL: &str = include_str!("sql/release.sql");
    let items = holds.len();
    let work = move |session: &mut Session| {
        if let [hold] = &holds[..]
            && session.crowded.as_ref() != Some(&hold.name)
            && give_back(session, &holds, SQL).map_err(Fault::in_commit)? == [true]
        {
            return Ok(vec![Release::Released]);
        }
        session.write(|session| {
            // One that is alone was tried already, or is not worth it.
            let given = match &holds[..] {
                [_] => vec![false],
                _ if session.quiet()?.0 => {
                    give_back(session, &holds, include_str!("sql/release_quiet.sql"))?
                }
                _ => give_back(session, &holds, SQL)?,
            };
            let each = holds.iter().zip(given);
            each.map(|(hold, given)| match given {
                true => Ok(Release::Released),
                false => give_back_carefully(session, hold),
            })
            .collect()
        })
    };
    store.run(items, work).await
}

/// The common case in one statement each: which of them were ours, and waited for by nobody.
fn give_back(session: &Session, holds: &[Hold], sql: &str) -> Result<Vec<bool>, Fault> {
    let mut statement = session.prepare(sql)?;
    let now = nanos(session.clock.now());
    let mut give_back = |hold: &Hold| {
        let (owner, token) = (hold.owner.to_bytes(), hold.token.get() as i64);
        Ok(statement.execute(params![hold.name.as_str(), owner, token, now])? == 1)
    };
    holds.iter().map(&mut give_back).collect()
}

fn give_back_carefully(session: &mut Session, hold: &Hold) -> Result<Release, Fault> {
    let now = session.clock.now();
    let row = session.lock_row(&hold.name)?;
    let is_ours = |row: &LockRow| (row.token, row.owner) == (hold.token, Some(hold.owner));
    let Some(row) = row.filter(is_ours) else { return Ok(Release::NotHeld) };
    session.write_free(&hold.name, now)?;
    session.serve(&hold.name, now)?;
    // A lease that lapsed was not the owner's any more; but its row is in nobody's way now.
    Ok(if row.expires > now { Release::Released } else { Release::NotHeld })
}

/// The next hint: a bell rang for nobody who waits, or the store's file is gone.
pub(super) async fn hint(store: Arc<SqliteStore>) -> Result<Hint> {
    let mut rung = pin!(store.bells.hint());
    loop {
        tokio::select! {
            hint = &mut rung => return Ok(hint),
            () = store.clock.sleep(file::INTERVAL) => {}
        }
        // Between renewals nothing else would notice.
        if store.file.look().is_err() {
            return Ok(Hint::All);
        }
    }
}
