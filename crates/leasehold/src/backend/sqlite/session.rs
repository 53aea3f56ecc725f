//! The work connection: its transactions, and what this process knows of the database.

use std::sync::Arc;

use rusqlite::{CachedStatement, Connection, OptionalExtension, Params, Row, params};

use super::error::Fault;
use super::process::Viewer;
use super::schema;
use crate::clock::Clock;
use crate::error::Result;
use crate::holder::Holder;
use crate::name::Name;
use crate::owner::Owner;

/// The work connection, and what this process knows of the database.
pub(super) struct Session {
    pub(super) connection: Connection,
    pub(super) clock: Clock,
    pub(super) viewer: Viewer,
    /// The name of this store's bell.
    bell: String,
    /// The ceiling when last read: it only rises, so this may be low but never high.
    pub(super) ceiling: i64,
    /// The ids of the holders that claimed through this store.
    clients: Vec<(Arc<Holder>, i64)>,
    /// Clients registered in the transaction under way.
    newcomers: Vec<(Arc<Holder>, i64)>,
    /// Bells to ring, each for an owner, once the transaction under way is committed.
    pub(super) rings: Vec<(String, Owner)>,
    /// The lock that was last found held or waited for: there the short way would fail.
    pub(super) crowded: Option<Name>,
}

impl Session {
    pub(super) fn new(connection: Connection, clock: Clock, viewer: Viewer, bell: &str) -> Self {
        let (bell, ceiling) = (bell.to_owned(), 0);
        let (clients, newcomers, rings, crowded) = Default::default();
        Self { connection, clock, viewer, bell, ceiling, clients, newcomers, rings, crowded }
    }

    pub(super) fn prepare(&self, sql: &str) -> Result<CachedStatement<'_>, Fault> {
        Ok(self.connection.prepare_cached(sql)?)
    }

    /// How many rows this changed.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> Result<usize, Fault> {
        Ok(self.prepare(sql)?.execute(params)?)
    }

    /// The first row that this finds.
    pub(super) fn find<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Option<T>, Fault> {
        Ok(self.prepare(sql)?.query_row(params, read).optional()?)
    }

    /// Runs `work` in a write transaction: committed as a whole, or rolled back.
    pub(super) fn write<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.undo();
        self.execute("begin immediate", ())?;
        let done = work(self)
            .and_then(|value| self.execute("commit", ()).map_err(Fault::in_commit).map(|_| value));
        if done.is_err() {
            self.undo();
            return done;
        }
        // Labels may differ without end; the rows are found again.
        if self.clients.len() > 64 {
            self.clients.clear();
        }
        self.clients.append(&mut self.newcomers);
        done
    }

    /// Runs `work` on one snapshot of the database.
    pub(super) fn read<T>(
        &mut self,
        work: impl FnOnce(&mut Self) -> Result<T, Fault>,
    ) -> Result<T, Fault> {
        self.undo();
        self.execute("begin", ())?;
        let done = work(self);
        self.undo();
        done
    }

    /// Leaves the connection usable, whatever happened on it (a panic included).
    pub(super) fn undo(&mut self) {
        self.newcomers.clear();
        self.rings.clear();
        if !self.connection.is_autocommit() {
            // Fails only when SQLite has rolled back by itself.
            let _ = self.execute("rollback", ());
        }
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
        let Holder { label, host, pid, process_group, .. } = &**holder;
        let (started, namespace) = (process.started, process.namespace);
        let columns = params![self.bell, label, host, pid, started, process_group, namespace];
        let id = match self.find(find, &columns[..6], |row| row.get(0))? {
            Some(id) => id,
            None => self.prepare(add)?.query_row(columns, |row| row.get(0))?,
        };
        // Only our own row is sure to stay while we live: others' are swept when they are gone.
        if holder.pid == std::process::id() {
            self.newcomers.push((holder.clone(), id));
        }
        Ok(id)
    }

    /// Raises the ceiling above `token` and waits until the disk has it.
    pub(super) fn raise_ceiling(&mut self, token: u64) -> Result<(), Fault> {
        let target = schema::ceiling_above(token as i64, &self.clock);
        let raise = "update meta set ceiling = max(ceiling, ?1) returning ceiling";
        self.ceiling = schema::write_to_disk(&self.connection, || {
            Ok(self.prepare(raise)?.query_one([target], |row| row.get(0))?)
        })?;
        Ok(())
    }
}
