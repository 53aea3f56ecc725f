//! The work that no request should wait for: checkpoints (they call fsync), raising the ceiling
//! before it is reached, and sweeping what is over. It has a thread with a connection of
//! its own, which ends with the store.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rusqlite::params;

use super::error::Fault;
use super::log::{self, Call, Chores};
use super::row::{Client, nanos};
use super::session::Session;
use super::{bell, schema};
use crate::token::Token;

const PATIENCE: Duration = Duration::from_millis(250);
const TICK: Duration = Duration::from_secs(10);
const TICKS_BETWEEN_SWEEPS: u32 = 6;
/// A lock's row is forgotten when it was idle for so long.
const IDLE: Duration = Duration::from_secs(3_600);
const AUDIT_FOR_MICROS: i64 = 30 * 24 * 3_600 * 1_000_000;
/// So many clients are more than live: those that came and went left nobody to sweep.
const MANY_CLIENTS: i64 = 256;
/// Rows per transaction, so that no one waits long for the database.
const CHUNK: usize = 128;

/// A chore that fails now (another process writes, the disk is full) is done at the next tick.
pub(super) fn report(chore: &str, done: Result<(), Fault>) {
    if let Err(fault) = done {
        tracing::debug!(chore, ?fault, "housekeeping is put off");
    }
}

/// The housekeeping thread's own view of the database.
pub(super) struct Keeper {
    pub(super) session: Session,
    pub(super) chores: Arc<Chores>,
    pub(super) bells: PathBuf,
}

impl Keeper {
    /// Starts the thread.
    pub(super) fn start(mut self) -> std::io::Result<()> {
        let thread = std::thread::Builder::new().name("leasehold-sqlite".to_owned());
        thread.spawn(move || self.keep()).map(drop)
    }

    fn keep(&mut self) {
        let (mut seen, mut ticks) = (0, 0);
        // Nobody waits for this thread, so it may wait for others.
        let _ = self.session.connection.busy_timeout(PATIENCE);
        report("first sweep", self.sweep_after_others());
        // Counted from tick to tick: calls that come often must not put it off for ever.
        let mut next_tick = Instant::now() + TICK;
        while let Some(call) = self.chores.next_call(next_tick) {
            let writes = self.chores.writes.load(Ordering::Relaxed);
            self.tidy(call, writes != seen);
            seen = writes;
            if call == Call::Tick {
                if ticks % TICKS_BETWEEN_SWEEPS == 0 {
                    report("sweep", self.sweep());
                }
                ticks = ticks.wrapping_add(1);
                next_tick = Instant::now() + TICK;
            }
        }
    }

    /// Does what cannot wait for the next sweep.
    pub(super) fn tidy(&mut self, call: Call, we_wrote: bool) {
        let connection = &self.session.connection;
        let done = match call {
            // All processes that write see that it is long, and one checkpoint is enough.
            Call::Checkpoint => log::checkpoint_if_long(connection),
            // Also of what others wrote: they may come and go, each too soon to do it.
            Call::Tick => log::checkpoint(connection),
        };
        report("checkpoint", done);
        if we_wrote {
            report("ceiling", self.raise_ceiling());
        }
    }

    /// Keeps the ceiling ahead of the clock, so that no acquire waits for the disk.
    pub(super) fn raise_ceiling(&mut self) -> Result<(), Fault> {
        let session = &mut self.session;
        let ceiling =
            session.prepare("select ceiling from meta")?.query_row((), |row| row.get(0))?;
        if schema::is_low(ceiling, &session.clock) { session.raise_ceiling(0) } else { Ok(()) }
    }

    /// Sweeps at once where many came and went, none of them long enough for a tick.
    pub(super) fn sweep_after_others(&mut self) -> Result<(), Fault> {
        let find = "select 1 from clients limit 1 offset ?1";
        if self.session.prepare(find)?.exists([MANY_CLIENTS])? { self.sweep() } else { Ok(()) }
    }

    /// Forgets what is over.
    pub(super) fn sweep(&mut self) -> Result<(), Fault> {
        bell::sweep(&self.bells);
        let mut after = Some(String::new());
        while let Some(name) = after {
            after = self.forget_idle_locks(&name)?;
        }
        self.forget_rows()?;
        self.forget_clients()
    }

    /// Forgets a chunk of the idle locks after this name, and says where to go on. The
    /// floor takes the place of the tokens that are forgotten.
    fn forget_idle_locks(&mut self, after: &str) -> Result<Option<String>, Fault> {
        let before = nanos(self.session.clock.now() - IDLE);
        // Found outside of the transaction: a scan must not hold up writers.
        let mut names: Vec<String> = self
            .session
            .prepare(
                "select name from locks where expires < ?1 and name > ?2 order by name limit ?3",
            )?
            .query_map(params![before, after, CHUNK as i64], |row| row.get(0))?
            .collect::<Result<_, _>>()?;
        if names.is_empty() {
            return Ok(None);
        }
        self.session.write(|session| {
            // A damaged token stays in its row: as the floor it would use up the tokens of all.
            let delete = "delete from locks where name = ?1 and expires < ?2 \
                          and token between 0 and ?3 \
                          and not exists (select 1 from waiters where lock = ?1) returning token";
            let last_token = Token::MAX_PORTABLE.get() as i64;
            let mut highest: i64 = 0;
            for name in &names {
                let row = params![name, before, last_token];
                let deleted = session.find(delete, row, |row| row.get(0))?;
                highest = highest.max(deleted.unwrap_or(0));
            }
            session.execute("update meta set floor = max(floor, ?1)", [highest])
        })?;
        Ok(names.pop().filter(|_| names.len() + 1 == CHUNK))
    }

    fn forget_rows(&mut self) -> Result<(), Fault> {
        let now = nanos(self.session.clock.now());
        let oldest = (self.session.clock.wall_micros() as i64).saturating_sub(AUDIT_FOR_MICROS);
        let sweeps = [
            ("bars", "until", now),
            // Long after they count as dead: until then whoever serves the queue takes them out.
            ("waiters", "alive_until", now.saturating_sub(60_000_000_000)),
            ("audit", "at", oldest),
        ];
        for (table, column, before) in sweeps {
            let find = format!("select 1 from {table} where {column} < ?1");
            if self.session.prepare(&find)?.exists([before])? {
                let delete = format!("delete from {table} where {column} < ?1");
                self.session.write(|session| session.execute(&delete, [before]))?;
            }
        }
        Ok(())
    }

    /// Forgets the clients that are gone, and those that cannot be seen: of another pid
    /// namespace, nobody else may be left to forget them. One of these that lives introduces
    /// itself again.
    fn forget_clients(&mut self) -> Result<(), Fault> {
        let session = &mut self.session;
        let mut clients: Vec<Client> = session
            .prepare(
                "select id, host, pid, label, started, namespace, bell, process_group \
                 from clients",
            )?
            .query_map((), |row| Client::read(row, 0))?
            .collect::<Result<_, _>>()?;
        let viewer = &session.viewer;
        clients.retain(|client| !viewer.sees(&client.process) || viewer.is_gone(&client.process));
        if clients.is_empty() {
            return Ok(());
        }
        let needed = needed_clients(session)?;
        clients.retain(|client| !needed.contains(&client.id));
        // Together, so that few chunks have any that cannot be seen.
        clients.sort_by_key(|client| session.viewer.sees(&client.process));
        for chunk in clients.chunks(CHUNK) {
            session.write(|session| {
                // Live clients may have acquired something meanwhile; those that are gone have
                // not, and a scan of all locks would hold up writers.
                let may_live = chunk.iter().any(|client| !session.viewer.sees(&client.process));
                let needed = if may_live { needed_clients(session)? } else { HashSet::new() };
                for client in chunk.iter().filter(|client| !needed.contains(&client.id)) {
                    session.execute("delete from clients where id = ?1", [client.id])?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// The clients that hold or wait for something.
fn needed_clients(session: &Session) -> Result<HashSet<i64>, Fault> {
    let find = "select client from locks where owner is not null and client is not null \
                union select client from waiters";
    Ok(session.prepare(find)?.query_map((), |row| row.get(0))?.collect::<Result<_, _>>()?)
}
