//! The line of waiters, first come, first served. Whoever finds a lock free grants
//! it to the first waiter that is alive, in the same transaction, and rings its bell
//! after COMMIT: one message per hand-over, no herd.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::bell::Ring;
use super::connection::Session;
use super::error::Fault;
use super::row::{Client, LockRow, moment, nanos};
use crate::backend::Claim;
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How long a waiter counts as alive without a heartbeat.
pub(super) const ALIVE_FOR: Duration = Duration::from_secs(3);

/// A pushed grant lasts no longer, so that one to a waiter that just died lapses soon;
/// a live one renews it to its full TTL at once.
pub(super) const LONGEST_PUSHED: Duration = Duration::from_secs(3);

/// The first in line.
#[derive(Debug)]
pub(super) struct Waiter {
    sequence: i64,
    pub(super) owner: Owner,
    ttl: Duration,
    alive_until: Moment,
    client: Client,
}

/// What need not be looked for lock by lock, because there is none of it at all.
#[derive(Debug, Clone, Copy)]
pub(super) struct Quiet {
    pub(super) nobody_waits: bool,
    pub(super) nobody_is_barred: bool,
}

impl Session {
    /// What there is none of. Inside a write transaction, for which it stays true as far
    /// as the transaction itself does not change it.
    pub(super) fn quiet(&self) -> Result<Quiet, Fault> {
        let look = "select not exists (select 1 from waiters), not exists (select 1 from bars)";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Quiet { nobody_waits: row.get(0)?, nobody_is_barred: row.get(1)? })
        };
        Ok(self.prepare(look)?.query_row((), read)?)
    }

    /// Takes a place in line, or keeps the one it has. Inside a write transaction, as all below.
    pub(super) fn enqueue(&mut self, claim: &Claim, now: Moment) -> Result<(), Fault> {
        let client = self.introduce(&claim.holder)?;
        self.prepare(include_str!("enqueue.sql"))?.execute(params![
            claim.name.as_str(),
            claim.owner.to_bytes(),
            client,
            i64::try_from(claim.ttl.as_nanos()).unwrap_or(i64::MAX),
            nanos(now + ALIVE_FOR)
        ])?;
        Ok(())
    }

    pub(super) fn dequeue(&mut self, name: &Name, owner: Owner) -> Result<(), Fault> {
        let delete = "delete from waiters where lock = ?1 and owner = ?2";
        self.prepare(delete)?.execute(params![name.as_str(), owner.to_bytes()])?;
        Ok(())
    }

    /// The first waiter that is alive; those before it are taken out of the line, or a
    /// queue would stand still behind a dead one (redisson#3004).
    pub(super) fn first_live(&mut self, name: &Name, now: Moment) -> Result<Option<Waiter>, Fault> {
        while let Some(first) = self.first(name)? {
            if first.alive_until > now && !self.viewer.is_gone(&first.client.process) {
                return Ok(Some(first));
            }
            let delete = "delete from waiters where lock = ?1 and sequence = ?2";
            self.prepare(delete)?.execute(params![name.as_str(), first.sequence])?;
        }
        Ok(None)
    }

    /// Whether nobody is before this owner.
    pub(super) fn is_first(&self, name: &Name, owner: Owner) -> Result<bool, Fault> {
        Ok(self.first(name)?.is_some_and(|first| first.owner == owner))
    }

    fn first(&self, name: &Name) -> Result<Option<Waiter>, Fault> {
        // `select ?1`: see enqueue.sql.
        const SQL: &str = "select sequence, owner, ttl, alive_until, \
             id, host, pid, label, started, namespace, bell, process_group \
             from waiters cross join clients on clients.id = client \
             where lock = (select ?1) order by sequence limit 1";
        let read = |row: &rusqlite::Row<'_>| {
            Ok(Waiter {
                sequence: row.get(0)?,
                owner: Owner::from_bytes(row.get(1)?),
                ttl: Duration::from_nanos(row.get::<_, i64>(2)?.unsigned_abs()),
                alive_until: moment(row.get(3)?),
                client: Client::read(row, 4)?,
            })
        };
        Ok(self.prepare(SQL)?.query_row([name.as_str()], read).optional()?)
    }

    /// Grants a lock that is free to this waiter, and rings for it after COMMIT.
    pub(super) fn push(
        &mut self,
        name: &Name,
        last: Token,
        to: &Waiter,
        now: Moment,
    ) -> Result<LockRow, Fault> {
        let token = self.next_token(last)?;
        self.dequeue(name, to.owner)?;
        let term = to.ttl.min(LONGEST_PUSHED);
        let row = self.write_lease(name, token, (to.owner, to.client.id), now, term)?;
        self.rings.push(Ring { bell: to.client.bell.clone(), owner: to.owner });
        Ok(row)
    }

    /// Lets the next waiter in if the lock is free, lapsed, or its holder's process gone.
    pub(super) fn serve(&mut self, name: &Name, now: Moment) -> Result<(), Fault> {
        let row = self.lock_row(name)?;
        if let Some(row) = row.as_ref().filter(|row| row.is_live(now))
            && !self.is_gone(row)?
        {
            return Ok(());
        }
        let last = row.map_or(Token::new(0), |row| row.token);
        match self.first_live(name, now)? {
            Some(first) => self.push(name, last, &first, now).map(drop),
            None => {
                self.crowded.take_if(|crowded| crowded == name);
                Ok(())
            }
        }
    }
}
