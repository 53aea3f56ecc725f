//! Keeping a lease and giving it back.

use rusqlite::{OptionalExtension, params};

use super::connection::Session;
use super::error::Fault;
use super::row::nanos;
use crate::backend::{Hold, Proof, Release, Renewal};
use crate::loss::{Forced, LossReason};

pub(super) fn renew(session: &mut Session, holds: &[Hold]) -> Result<Vec<Renewal>, Fault> {
    session.write(|session| {
        // One look at the clock, before the first lease is proved, dates them all.
        let at = session.clock.now();
        let mut statement = session.prepare(include_str!("renew.sql"))?;
        let mut renew = |hold: &Hold| {
            let renewed = statement.execute(params![
                hold.name.as_str(),
                hold.owner.to_bytes(),
                hold.token.get() as i64,
                nanos(at),
                nanos(at + hold.ttl)
            ])?;
            if renewed == 1 {
                return Ok(Renewal::Renewed(Proof { at, valid_for: hold.ttl }));
            }
            Ok(Renewal::NotYours(why_lost(session, hold)?))
        };
        holds.iter().map(&mut renew).collect()
    })
}

fn why_lost(session: &Session, hold: &Hold) -> Result<LossReason, Fault> {
    let find = "select by, reason from audit where lock = ?1 and token = ?2";
    let forced = session
        .prepare(find)?
        .query_row(params![hold.name.as_str(), hold.token.get() as i64], |row| {
            Ok(Forced::new(row.get::<_, String>(0)?, row.get::<_, String>(1)?))
        })
        .optional()?;
    if let Some(forced) = forced {
        return Ok(LossReason::Forced(forced));
    }
    let taken = session.lock_row(&hold.name)?.is_some_and(|row| row.token > hold.token);
    Ok(if taken { LossReason::Taken } else { LossReason::Expired })
}

pub(super) fn release(session: &mut Session, holds: &[Hold]) -> Result<Vec<Release>, Fault> {
    if let [hold] = holds
        && session.crowded.as_ref() != Some(&hold.name)
        && give_back(session, holds, GIVE_BACK).map_err(Fault::in_commit)? == [true]
    {
        session.committed();
        return Ok(vec![Release::Released]);
    }
    session.write(|session| {
        // One that is alone was tried already, or is not worth it.
        let given = match holds {
            [_] => vec![false],
            _ if session.quiet()?.nobody_waits => {
                give_back(session, holds, include_str!("give_back_quiet.sql"))?
            }
            _ => give_back(session, holds, GIVE_BACK)?,
        };
        let each = holds.iter().zip(given);
        each.map(|(hold, given)| match given {
            true => Ok(Release::Released),
            false => release_one(session, hold),
        })
        .collect()
    })
}

const GIVE_BACK: &str = include_str!("give_back.sql");

/// The common case in one statement each: which of them were ours, and waited for by nobody.
fn give_back(session: &Session, holds: &[Hold], sql: &str) -> rusqlite::Result<Vec<bool>> {
    let mut statement = session.connection.prepare_cached(sql)?;
    let now = nanos(session.clock.now());
    let mut give_back = |hold: &Hold| {
        let given = statement.execute(params![
            hold.name.as_str(),
            hold.owner.to_bytes(),
            hold.token.get() as i64,
            now
        ])?;
        Ok(given == 1)
    };
    holds.iter().map(&mut give_back).collect()
}

fn release_one(session: &mut Session, hold: &Hold) -> Result<Release, Fault> {
    let now = session.clock.now();
    let Some(row) = session.lock_row(&hold.name)?.filter(|row| row.token == hold.token) else {
        return Ok(Release::NotHeld);
    };
    if row.owner != Some(hold.owner) {
        return Ok(Release::NotHeld);
    }
    // A lease that lapsed is not the owner's any more; but its row is in nobody's way now.
    let verdict = if row.expires > now { Release::Released } else { Release::NotHeld };
    session.write_free(&hold.name, now)?;
    session.serve(&hold.name, now)?;
    Ok(verdict)
}
