//! Taking locks, and finding out how an acquire ended.

use std::sync::Arc;

use rusqlite::params;

use super::SqliteStore;
use super::error::Fault;
use super::row::nanos;
use super::schema::clock_floor;
use super::session::Session;
use crate::backend::kit::tombstone;
use crate::backend::{Claim, Grant, Proof, Verdict};
use crate::error::Result;
use crate::token::Token;

pub(super) async fn acquire(store: Arc<SqliteStore>, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    let items = claims.len();
    let work = move |session: &mut Session| {
        if let [claim] = &claims[..]
            && session.crowded.as_ref() != Some(&claim.name)
            && let Some(client) = session.known(&claim.holder)
            && let Some(grant) = take(session, claim, client).map_err(Fault::in_commit)?
        {
            return Ok(vec![Verdict::Granted(grant)]);
        }
        session.write(|session| {
            // One that is alone was tried already, or is not worth it.
            let taken = if claims.len() > 1 { take_batch(session, &claims)? } else { vec![None] };
            let each = claims.iter().zip(taken);
            each.map(|(claim, taken)| match taken {
                Some(grant) => Ok(Verdict::Granted(grant)),
                None => take_carefully(session, claim),
            })
            .collect()
        })
    };
    store.run(items, work).await
}

/// The common case in one statement: free, nobody waits, the owner was not settled.
fn take(session: &Session, claim: &Claim, client: i64) -> Result<Option<Grant>, Fault> {
    let at = session.clock.now();
    let (lock, owner) = (claim.name.as_str(), claim.owner.to_bytes());
    let (now, expires, wall) = (nanos(at), nanos(at + claim.ttl), session.clock.wall_micros());
    let (wall, lowest, ceiling) = (wall as i64, clock_floor(&session.clock), session.ceiling);
    let mut statement = session.prepare(include_str!("sql/acquire.sql"))?;
    let mut rows =
        statement.query(params![lock, owner, client, now, expires, wall, lowest, ceiling])?;
    let Some(token) = rows.next()?.map(|row| row.get::<_, i64>(0)).transpose()? else {
        return Ok(None);
    };
    // The statement commits when it is done, not with its first row.
    while rows.next()?.is_some() {}
    let proof = Proof { at, valid_for: claim.ttl };
    Ok(Some(Grant { token: Token::new(token as u64), proof }))
}

/// The common case among others, in their transaction: one plain statement each, with a
/// token that was chosen before. What it cannot grant (a lock without a row, a clock that
/// went back, anything in the way) is left to the careful way.
fn take_batch(session: &mut Session, claims: &[Claim]) -> Result<Vec<Option<Grant>>, Fault> {
    // Looked at before any claim queues, and for all of them: in this transaction it stays true.
    let sql = match session.quiet()? {
        (true, true) => include_str!("sql/acquire_batch_quiet.sql"),
        _ => include_str!("sql/acquire_batch.sql"),
    };
    // They are of different locks, so that they may share a token too. Where there is none,
    // the careful way says why.
    let Ok(token) = session.next_token(None) else { return Ok(vec![None; claims.len()]) };
    let mut clients: Vec<i64> = Vec::with_capacity(claims.len());
    for (at, claim) in claims.iter().enumerate() {
        // As a rule they are all of one holder.
        let client = match at.checked_sub(1) {
            Some(last) if Arc::ptr_eq(&claims[last].holder, &claim.holder) => clients[last],
            _ => session.introduce(&claim.holder)?,
        };
        clients.push(client);
    }
    // One look at the clocks, after BEGIN and before the first is granted, dates them all.
    let (now, wall) = (session.clock.now(), session.clock.wall_micros() as i64);
    let number = token.get() as i64;
    let mut statement = session.prepare(sql)?;
    let mut take = |(claim, client): (&Claim, i64)| {
        let (lock, owner) = (claim.name.as_str(), claim.owner.to_bytes());
        let (proved, expires) = (nanos(now), nanos(now + claim.ttl));
        let taken =
            statement.execute(params![lock, number, owner, client, proved, expires, wall])?;
        let proof = Proof { at: now, valid_for: claim.ttl };
        Ok((taken == 1).then_some(Grant { token, proof }))
    };
    claims.iter().zip(clients).map(&mut take).collect()
}

fn take_carefully(session: &mut Session, claim: &Claim) -> Result<Verdict, Fault> {
    // After BEGIN, so that waiting for the database does not eat the term.
    let now = session.clock.now();
    let row = session.lock_row(&claim.name)?;
    if let Some(mine) = row.as_ref().filter(|row| row.is_live_for(claim.owner, now)) {
        return Ok(Verdict::Granted(mine.grant()));
    }
    let find = "select 1 from bars where owner = ?1";
    if session.prepare(find)?.exists([claim.owner.to_bytes()])? {
        return Ok(Verdict::Held(None));
    }
    let holder = match row {
        Some(row) if session.is_held(&row, now)? => row,
        row => session.grant_to_first(claim, row.as_ref(), now)?,
    };
    if holder.owner == Some(claim.owner) {
        session.crowded = None;
        return Ok(Verdict::Granted(holder.grant()));
    }
    session.crowded = Some(claim.name.clone());
    let by = Some(session.held_by(&holder)?);
    if !claim.queue {
        return Ok(Verdict::Held(by));
    }
    session.enqueue(claim, now)?;
    Ok(Verdict::Queued(by))
}

/// Is it mine? If not, it never will be.
pub(super) async fn settle(
    store: Arc<SqliteStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    let settle = |session: &mut Session, claim: &Claim| {
        let now = session.clock.now();
        if let Some(row) = session.lock_row(&claim.name)?
            && row.is_live_for(claim.owner, now)
        {
            return Ok(Some(row.grant()));
        }
        let until = now + tombstone::term(claim.ttl);
        let settled = "insert into bars (owner, until) values (?1, ?2) \
                       on conflict (owner) do update set until = max(until, excluded.until)";
        session.execute(settled, params![claim.owner.to_bytes(), nanos(until)])?;
        session.dequeue(&claim.name, claim.owner)?;
        session.serve(&claim.name, now)?;
        Ok(None)
    };
    let items = claims.len();
    let work = move |session: &mut Session| {
        session.write(|session| claims.iter().map(|claim| settle(session, claim)).collect())
    };
    store.run(items, work).await
}
