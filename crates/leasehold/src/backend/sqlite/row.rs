//! Rows as values: locks and clients as the tables keep them, and the few
//! statements that every operation uses.

use std::time::{Duration, SystemTime};

use rusqlite::{Row, params};

use super::error::Fault;
use super::process::Process;
use super::session::Session;
use crate::backend::kit::time;
use crate::backend::{Grant, Proof};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{HeldBy, Holder};
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// A lock as its row says.
#[derive(Debug, Clone)]
pub(super) struct LockRow {
    pub(super) token: Token,
    pub(super) owner: Option<Owner>,
    pub(super) client: Option<i64>,
    proved: Moment,
    pub(super) expires: Moment,
    since: SystemTime,
}

impl LockRow {
    /// Whether a lease covers the lock now.
    pub(super) fn is_live(&self, now: Moment) -> bool {
        self.owner.is_some() && self.expires > now
    }

    /// Whether this owner's lease covers it now.
    pub(super) fn is_live_for(&self, owner: Owner, now: Moment) -> bool {
        self.owner == Some(owner) && self.expires > now
    }

    /// The grant that its owner has.
    pub(super) fn grant(&self) -> Grant {
        let valid_for = self.proved.until(self.expires);
        Grant { token: self.token, proof: Proof { at: self.proved, valid_for } }
    }
}

/// A process that introduced itself.
#[derive(Debug, Clone)]
pub(super) struct Client {
    pub(super) id: i64,
    pub(super) holder: Holder,
    pub(super) process: Process,
    pub(super) bell: String,
}

impl Client {
    /// Reads the columns id, host, pid, label, started, namespace, bell, process_group,
    /// beginning at `at`.
    pub(super) fn read(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        let (host, pid, label): (String, u32, String) =
            (row.get(at + 1)?, row.get(at + 2)?, row.get(at + 3)?);
        let (started, namespace, group) = (row.get(at + 4)?, row.get(at + 5)?, row.get(at + 7)?);
        Ok(Self {
            id: row.get(at)?,
            holder: Holder { process_group: group, ..Holder::new(host, pid, label) },
            process: Process { pid, started, namespace, group },
            bell: row.get(at + 6)?,
        })
    }
}

impl Session {
    pub(super) fn lock_row(&self, name: &Name) -> Result<Option<LockRow>, Fault> {
        const SQL: &str =
            "select token, owner, client, proved, expires, since from locks where name = ?1";
        self.find(SQL, [name.as_str()], |row| {
            Ok(LockRow {
                token: Token::new(row.get::<_, i64>(0)? as u64),
                owner: row.get::<_, Option<[u8; 16]>>(1)?.map(Owner::from_bytes),
                client: row.get(2)?,
                proved: moment(row.get(3)?),
                expires: moment(row.get(4)?),
                since: time::at(row.get(5)?),
            })
        })
    }

    /// `None` if the lease has no client, or it is not known any more.
    pub(super) fn client(&self, id: Option<i64>) -> Result<Option<Client>, Fault> {
        const SQL: &str = "select id, host, pid, label, started, namespace, bell, process_group \
                           from clients where id = ?1";
        self.find(SQL, [id], |row| Client::read(row, 0))
    }

    /// Who holds a lock, for people.
    pub(super) fn held_by(&self, row: &LockRow) -> Result<HeldBy, Fault> {
        let holder = self.client(row.client)?.map(|client| client.holder);
        Ok(HeldBy::new(holder, Some(row.since)))
    }

    /// Whether a lease covers the lock whose process may still be there.
    pub(super) fn is_held(&self, row: &LockRow, now: Moment) -> Result<bool, Fault> {
        let is_gone = |client: Client| self.viewer.is_gone(&client.process);
        Ok(row.is_live(now) && !self.client(row.client)?.is_some_and(is_gone))
    }

    /// The token after that of this row. Inside a write transaction.
    ///
    /// It is above the floor of forgotten rows and not below the wall clock; but never beyond a
    /// ceiling that was fsynced first, so that after a power cut the ceiling is above every token
    /// that was ever seen.
    pub(super) fn next_token(&mut self, last: Option<&LockRow>) -> Result<Token, Fault> {
        let floor: i64;
        (floor, self.ceiling) = self
            .prepare("select floor, ceiling from meta")?
            .query_row((), |row| Ok((row.get(0)?, row.get(1)?)))?;
        let last = last.map_or(Token::new(0), |row| row.token).max(Token::new(floor as u64));
        let token = Token::after(last, self.clock.wall_micros()).ok_or_else(|| {
            let message = "no token below 2^53 is left in this database";
            Error::new(ErrorKind::Unusable, message).not_applied()
        })?;
        if token.get() > self.ceiling as u64 {
            return Err(Fault::Ceiling(token.get()));
        }
        Ok(token)
    }

    /// Writes a lease. Inside a write transaction.
    pub(super) fn write_lease(
        &mut self,
        name: &Name,
        token: Token,
        (owner, client): (Owner, i64),
        now: Moment,
        term: Duration,
    ) -> Result<LockRow, Fault> {
        let (expires, since) = (now + term, self.clock.wall_micros() as i64);
        let (lock, number, id) = (name.as_str(), token.get() as i64, owner.to_bytes());
        let lease = params![lock, number, id, client, nanos(now), nanos(expires), since];
        self.execute(include_str!("sql/grant.sql"), lease)?;
        let (owner, client, since) = (Some(owner), Some(client), time::at(since));
        Ok(LockRow { token, owner, client, proved: now, expires, since })
    }

    /// Frees a lock; its row goes on to remember the token. Inside a write transaction.
    pub(super) fn write_free(&mut self, name: &Name, now: Moment) -> Result<(), Fault> {
        let free = "update locks set owner = null, expires = ?2 where name = ?1";
        self.execute(free, params![name.as_str(), nanos(now)]).map(drop)
    }
}

/// As a column keeps it; a moment that never comes is the last one it can keep.
pub(super) fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(u64::try_from(nanos).unwrap_or(0))
}
