//! Rows as values: locks and clients as the tables keep them, and the few
//! statements that every operation uses.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rusqlite::{OptionalExtension, Row, params};

use super::connection::Session;
use super::error::Fault;
use super::process::Process;
use crate::backend::{Grant, Proof};
use crate::clock::Moment;
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
    pub(super) proved: Moment,
    pub(super) expires: Moment,
    pub(super) since: SystemTime,
}

impl LockRow {
    /// Reads the columns token, owner, client, proved, expires, since.
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            token: Token::new(row.get::<_, i64>(0)? as u64),
            owner: row.get::<_, Option<[u8; 16]>>(1)?.map(Owner::from_bytes),
            client: row.get(2)?,
            proved: moment(row.get(3)?),
            expires: moment(row.get(4)?),
            since: wall(row.get(5)?),
        })
    }

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
        Ok(self.prepare(SQL)?.query_row([name.as_str()], LockRow::read).optional()?)
    }

    /// `None` if the lease has no client, or it is not known any more.
    pub(super) fn client(&self, id: Option<i64>) -> Result<Option<Client>, Fault> {
        const SQL: &str = "select id, host, pid, label, started, namespace, bell, process_group \
                           from clients where id = ?1";
        Ok(self.prepare(SQL)?.query_row([id], |row| Client::read(row, 0)).optional()?)
    }

    /// The id of a holder that claimed through this store before.
    pub(super) fn known(&self, holder: &Arc<Holder>) -> Option<i64> {
        let mut all = self.clients.iter().chain(&self.newcomers);
        all.find(|(known, _)| Arc::ptr_eq(known, holder) || known == holder).map(|(_, id)| *id)
    }

    /// The id of a holder, which is introduced if need be. Inside a write transaction.
    pub(super) fn introduce(&mut self, holder: &Arc<Holder>) -> Result<i64, Fault> {
        if let Some(id) = self.known(holder) {
            // A sweep from another pid namespace, where we cannot be seen, may have forgotten us.
            if self.prepare("select 1 from clients where id = ?1")?.exists([id])? {
                return Ok(id);
            }
            self.clients.retain(|(_, known)| *known != id);
        }
        let process = self.viewer.describe(holder.pid);
        let find = "select id from clients where bell = ?1 and label = ?2 and host = ?3 \
                    and pid = ?4 and started is ?5 and process_group is ?6";
        let add = "insert into clients (bell, label, host, pid, started, process_group, namespace) \
                   values (?1, ?2, ?3, ?4, ?5, ?6, ?7) returning id";
        let found = self
            .prepare(find)?
            .query_row(
                params![
                    self.bell,
                    holder.label,
                    holder.host,
                    holder.pid,
                    process.started,
                    holder.process_group
                ],
                |row| row.get(0),
            )
            .optional()?;
        let id = match found {
            Some(id) => id,
            None => self.prepare(add)?.query_row(
                params![
                    self.bell,
                    holder.label,
                    holder.host,
                    holder.pid,
                    process.started,
                    holder.process_group,
                    process.namespace
                ],
                |row| row.get(0),
            )?,
        };
        // Only our own row is sure to stay while we live: others' are swept when they are gone.
        if holder.pid == std::process::id() {
            self.newcomers.push((holder.clone(), id));
        }
        Ok(id)
    }

    /// Who holds a lock, for people.
    pub(super) fn held_by(&self, row: &LockRow) -> Result<HeldBy, Fault> {
        let holder = self.client(row.client)?.map(|client| client.holder);
        Ok(HeldBy::new(holder, Some(row.since)))
    }

    /// Whether the process behind a lease is certainly not there any more.
    pub(super) fn is_gone(&self, row: &LockRow) -> Result<bool, Fault> {
        let client = self.client(row.client)?;
        Ok(client.is_some_and(|client| self.viewer.is_gone(&client.process)))
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
        self.prepare(include_str!("grant.sql"))?.execute(params![
            name.as_str(),
            token.get() as i64,
            owner.to_bytes(),
            client,
            nanos(now),
            nanos(expires),
            since
        ])?;
        let (owner, client, since) = (Some(owner), Some(client), wall(since));
        Ok(LockRow { token, owner, client, proved: now, expires, since })
    }

    /// Frees a lock; its row goes on to remember the token. Inside a write transaction.
    pub(super) fn write_free(&mut self, name: &Name, now: Moment) -> Result<(), Fault> {
        let free = "update locks set owner = null, expires = ?2 where name = ?1";
        self.prepare(free)?.execute(params![name.as_str(), nanos(now)])?;
        Ok(())
    }
}

/// As a column keeps it; a moment that never comes is the last one it can keep.
pub(super) fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

pub(super) fn moment(nanos: i64) -> Moment {
    Moment::from_nanos(u64::try_from(nanos).unwrap_or(0))
}

pub(super) fn wall(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
