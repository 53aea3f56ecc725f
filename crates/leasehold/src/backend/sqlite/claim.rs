//! Taking a lock, leaving the line, and finding out how an acquire ended.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::params;

use super::connection::Session;
use super::error::Fault;
use super::row::{LockRow, nanos};
use super::token::clock_floor;
use crate::backend::{Claim, Grant, Proof, Verdict};
use crate::clock::Moment;
use crate::holder::HeldBy;
use crate::token::Token;

/// A bar outlives any request that may still be under way.
const SHORTEST_BAR: Duration = Duration::from_secs(60);

pub(super) fn acquire(session: &mut Session, claims: &[Claim]) -> Result<Vec<Verdict>, Fault> {
    if let [claim] = claims
        && session.crowded.as_ref() != Some(&claim.name)
        && let Some(client) = session.known(&claim.holder)
        && let Some(grant) = take(session, claim, client).map_err(in_commit)?
    {
        session.committed();
        return Ok(vec![Verdict::Granted(grant)]);
    }
    session.write(|session| {
        // One that is alone was tried already, or is not worth it.
        let taken = if claims.len() > 1 { take_batch(session, claims)? } else { vec![None] };
        let each = claims.iter().zip(taken);
        each.map(|(claim, taken)| match taken {
            Some(grant) => Ok(Verdict::Granted(grant)),
            None => acquire_one(session, claim),
        })
        .collect()
    })
}

fn acquire_one(session: &mut Session, claim: &Claim) -> Result<Verdict, Fault> {
    let client = session.introduce(&claim.holder)?;
    // After BEGIN, so that waiting for the database does not eat the term.
    let now = session.clock.now();
    let row = session.lock_row(&claim.name)?;
    if let Some(mine) = row.as_ref().filter(|row| row.is_live_for(claim.owner, now)) {
        return Ok(Verdict::Granted(mine.grant()));
    }
    if is_barred(session, claim)? {
        return Ok(Verdict::Held(None));
    }
    if let Some(held) = row.as_ref().filter(|row| row.is_live(now))
        && !session.is_gone(held)?
    {
        let by = session.held_by(held)?;
        return line_up(session, claim, by, now);
    }
    let last = row.as_ref().map_or(Token::new(0), |row| row.token);
    if let Some(first) = session.first_live(&claim.name, now)?
        && first.owner != claim.owner
    {
        let pushed = session.push(&claim.name, last, &first, now)?;
        let by = session.held_by(&pushed)?;
        return line_up(session, claim, by, now);
    }
    session.dequeue(&claim.name, claim.owner)?;
    session.crowded = None;
    Ok(Verdict::Granted(retake(session, claim, row.as_ref(), client, now)?.grant()))
}

/// The common case in one statement: free, nobody waits, nobody barred us.
fn take(session: &mut Session, claim: &Claim, client: i64) -> Result<Option<Grant>, Fault> {
    let at = session.clock.now();
    let mut statement = session.prepare(include_str!("take.sql"))?;
    let mut rows = statement.query(params![
        claim.name.as_str(),
        claim.owner.to_bytes(),
        client,
        nanos(at),
        nanos(at + claim.ttl),
        session.clock.wall_micros() as i64,
        clock_floor(&session.clock),
        session.ceiling
    ])?;
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
    let quiet = session.quiet()?;
    // All of them before any claim lines up: what was looked at once stays true.
    let sql = match quiet.nobody_waits && quiet.nobody_is_barred {
        true => include_str!("take_free_quiet.sql"),
        false => include_str!("take_free.sql"),
    };
    let marks = session.marks()?;
    let mut clients: Vec<i64> = Vec::with_capacity(claims.len());
    for (at, claim) in claims.iter().enumerate() {
        // As a rule they are all of one holder.
        let client = match at.checked_sub(1) {
            Some(last) if Arc::ptr_eq(&claims[last].holder, &claim.holder) => clients[last],
            _ => session.introduce(&claim.holder)?,
        };
        clients.push(client);
    }
    // One look at the clocks, after BEGIN and before the first is granted, dates them all;
    // they are of different locks, so that they may share a token too.
    let (now, wall) = (session.clock.now(), session.clock.wall_micros());
    let Some(token) = marks.token_after(0, wall) else { return Ok(vec![None; claims.len()]) };
    let mut statement = session.prepare(sql)?;
    let mut take = |(claim, client): (&Claim, i64)| {
        let taken = statement.execute(params![
            claim.name.as_str(),
            token.get() as i64,
            claim.owner.to_bytes(),
            client,
            nanos(now),
            nanos(now + claim.ttl),
            wall as i64
        ])?;
        let proof = Proof { at: now, valid_for: claim.ttl };
        Ok((taken == 1).then_some(Grant { token, proof }))
    };
    claims.iter().zip(clients).map(&mut take).collect()
}

/// Grants the lock to a claimant that is here. An owner whose own lease lapsed, with
/// nobody in between, keeps its token: one owner, one token.
pub(super) fn retake(
    session: &mut Session,
    claim: &Claim,
    row: Option<&LockRow>,
    client: i64,
    now: Moment,
) -> Result<LockRow, Fault> {
    let token = match row {
        Some(row) if row.owner == Some(claim.owner) => row.token,
        row => session.next_token(row.map_or(Token::new(0), |row| row.token))?,
    };
    session.write_lease(&claim.name, token, (claim.owner, client), now, claim.ttl)
}

fn line_up(
    session: &mut Session,
    claim: &Claim,
    by: HeldBy,
    now: Moment,
) -> Result<Verdict, Fault> {
    session.crowded = Some(claim.name.clone());
    if !claim.queue {
        return Ok(Verdict::Held(Some(by)));
    }
    session.enqueue(claim, now)?;
    Ok(Verdict::Queued(Some(by)))
}

fn is_barred(session: &Session, claim: &Claim) -> Result<bool, Fault> {
    let find = "select 1 from bars where owner = ?1";
    Ok(session.prepare(find)?.exists([claim.owner.to_bytes()])?)
}

/// Gives up the place in line, or the grant that just came.
pub(super) fn leave(session: &mut Session, claim: &Claim) -> Result<(), Fault> {
    session.write(|session| {
        let now = session.clock.now();
        session.dequeue(&claim.name, claim.owner)?;
        if session.lock_row(&claim.name)?.is_some_and(|row| row.owner == Some(claim.owner)) {
            session.write_free(&claim.name, now)?;
        }
        session.serve(&claim.name, now)
    })
}

/// Is it mine? If not, it never will be.
pub(super) fn settle(session: &mut Session, claims: &[Claim]) -> Result<Vec<Option<Grant>>, Fault> {
    session.write(|session| claims.iter().map(|claim| settle_one(session, claim)).collect())
}

fn settle_one(session: &mut Session, claim: &Claim) -> Result<Option<Grant>, Fault> {
    let now = session.clock.now();
    if let Some(row) = session.lock_row(&claim.name)?
        && row.is_live_for(claim.owner, now)
    {
        return Ok(Some(row.grant()));
    }
    let until = now + claim.ttl.max(SHORTEST_BAR);
    let bar = "insert into bars (owner, until) values (?1, ?2) \
               on conflict (owner) do update set until = max(until, excluded.until)";
    session.prepare(bar)?.execute(params![claim.owner.to_bytes(), nanos(until)])?;
    session.dequeue(&claim.name, claim.owner)?;
    session.serve(&claim.name, now)?;
    Ok(None)
}

fn in_commit(fault: Fault) -> Fault {
    match fault {
        Fault::Sqlite(error) => Fault::Commit(error),
        fault => fault,
    }
}
