//! What nobody should wait for: checkpoints (they call fsync), raising the ceiling
//! before it is reached, and sweeping what is over. A thread with a connection of
//! its own, which ends with the store.

use std::collections::HashSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rusqlite::{OptionalExtension, params};

use super::bell;
use super::connection::Session;
use super::error::Fault;
use super::log::{self, CHECKPOINT_EVERY};
use super::row::{Client, nanos};
use super::token::is_low;
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

/// What the store tells its housekeeping thread.
#[derive(Debug, Default)]
pub(super) struct Chores {
    /// How many transactions were committed so far.
    writes: AtomicU32,
    /// How long the log was after the last of them.
    frames: AtomicU32,
    /// The disk is full, or nearly so: the log must not grow.
    full: AtomicBool,
    wish: Mutex<Wish>,
    called: Condvar,
}

#[derive(Debug, Default)]
struct Wish {
    checkpoint: bool,
    stop: bool,
}

impl Chores {
    /// A transaction was committed. The log has so many frames now, whichever process wrote
    /// them: many processes that write little make it long, too.
    pub(super) fn wrote(&self, frames: u32) {
        self.writes.fetch_add(1, Ordering::Relaxed);
        let before = self.frames.swap(frames, Ordering::Relaxed);
        if before / CHECKPOINT_EVERY < frames / CHECKPOINT_EVERY {
            self.wish.lock().checkpoint = true;
            self.called.notify_one();
        }
    }

    /// Whether the log must be moved into the database before anything else is written.
    pub(super) fn is_full(&self) -> bool {
        self.full.load(Ordering::Relaxed)
    }

    pub(super) fn set_full(&self, full: bool) {
        self.full.store(full, Ordering::Relaxed);
    }

    /// Waits for what is to be done next; `None` when the store is gone.
    fn next_call(&self, tick: Instant) -> Option<Call> {
        let mut wish = self.wish.lock();
        loop {
            if wish.stop {
                return None;
            }
            if Instant::now() >= tick {
                wish.checkpoint = false;
                return Some(Call::Tick);
            }
            if std::mem::take(&mut wish.checkpoint) {
                return Some(Call::Checkpoint);
            }
            self.called.wait_until(&mut wish, tick);
        }
    }

    /// The store is dropped.
    pub(super) fn stop(&self) {
        self.wish.lock().stop = true;
        self.called.notify_one();
    }
}

/// Why the housekeeping thread woke up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    /// The log is long.
    Checkpoint,
    /// It is time for the rest, too.
    Tick,
}

/// What fails now (another process writes, the disk is full) is done at the next tick.
pub(super) fn report(chore: &str, done: Result<(), Fault>) {
    if let Err(fault) = done {
        tracing::debug!(chore, ?fault, "housekeeping is put off");
    }
}

/// Starts the thread.
pub(super) fn start(mut keeper: Keeper) -> std::io::Result<()> {
    let thread = std::thread::Builder::new().name("leasehold-sqlite".to_owned());
    thread.spawn(move || keeper.keep()).map(drop)
}

/// The housekeeping thread's own view of the database.
#[derive(Debug)]
pub(super) struct Keeper {
    pub(super) session: Session,
    pub(super) bells: PathBuf,
}

impl Keeper {
    fn keep(&mut self) {
        let chores: Arc<Chores> = self.session.chores.clone();
        let (mut seen, mut ticks) = (0, 0);
        // Nobody waits for this thread, so it may wait for others.
        let _ = self.session.connection.busy_timeout(PATIENCE);
        report("first sweep", self.sweep_after_others());
        // Counted from tick to tick: calls that come often must not put it off for ever.
        let mut next_tick = Instant::now() + TICK;
        while let Some(call) = chores.next_call(next_tick) {
            let writes = chores.writes.load(Ordering::Relaxed);
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

    /// What cannot wait for the next sweep.
    pub(super) fn tidy(&mut self, call: Call, we_wrote: bool) {
        let connection = &self.session.connection;
        let done = match call {
            // All processes that write see that it is long, and one checkpoint is enough.
            Call::Checkpoint => log::checkpoint_if_long(connection),
            // What others wrote, too: they may come and go, each too soon to do it.
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
        if is_low(ceiling, &session.clock) {
            session.raise_ceiling(0)?;
        }
        Ok(())
    }

    /// Sweeps at once where many came and went, none of them long enough for a tick.
    pub(super) fn sweep_after_others(&mut self) -> Result<(), Fault> {
        let find = "select 1 from clients limit 1 offset ?1";
        if self.session.prepare(find)?.exists([MANY_CLIENTS])? {
            self.sweep()?;
        }
        Ok(())
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
            let mut highest = 0;
            for name in &names {
                let deleted = session
                    .prepare(delete)?
                    .query_row(params![name, before, last_token], |row| row.get::<_, i64>(0))
                    .optional()?;
                highest = highest.max(deleted.unwrap_or(0));
            }
            let raise = "update meta set floor = max(floor, ?1)";
            Ok(session.prepare(raise)?.execute([highest])?)
        })?;
        Ok(names.pop().filter(|_| names.len() + 1 == CHUNK))
    }

    fn forget_rows(&mut self) -> Result<(), Fault> {
        let now = nanos(self.session.clock.now());
        let oldest = (self.session.clock.wall_micros() as i64).saturating_sub(AUDIT_FOR_MICROS);
        let sweeps = [
            ("bars", "until", now),
            // Long after they count as dead: whoever serves the line needs them out of it.
            ("waiters", "alive_until", now.saturating_sub(60_000_000_000)),
            ("audit", "at", oldest),
        ];
        for (table, column, before) in sweeps {
            let find = format!("select 1 from {table} where {column} < ?1");
            if self.session.prepare(&find)?.exists([before])? {
                let delete = format!("delete from {table} where {column} < ?1");
                self.session.write(|session| Ok(session.prepare(&delete)?.execute([before])?))?;
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
                // Those that live may have acquired something meanwhile; those that are gone have
                // not, and a scan of all locks would hold up writers.
                let may_live = chunk.iter().any(|client| !session.viewer.sees(&client.process));
                let needed = if may_live { needed_clients(session)? } else { HashSet::new() };
                for client in chunk.iter().filter(|client| !needed.contains(&client.id)) {
                    session.prepare("delete from clients where id = ?1")?.execute([client.id])?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_never_rests_is_swept_too() {
        let chores = Chores::default();
        chores.wrote(CHECKPOINT_EVERY - 1);
        chores.wrote(CHECKPOINT_EVERY);
        assert_eq!(chores.next_call(Instant::now() + TICK), Some(Call::Checkpoint));
        chores.wrote(2 * CHECKPOINT_EVERY);
        assert_eq!(chores.next_call(Instant::now()), Some(Call::Tick), "due, though called");
        chores.stop();
        assert_eq!(chores.next_call(Instant::now()), None);
    }
}
