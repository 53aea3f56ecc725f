//! The queue of a lock, first come, first served, and waiting in it: until the bell rings, the
//! holder's time is up, its process ends, or a heartbeat is due. The database is the truth; all
//! of these only say when to look.
//!
//! Whoever finds a lock free grants it to the first waiter that is alive, in the same
//! transaction, and rings its bell after COMMIT: one message per hand-over, no herd.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::params;
use tokio::io::unix::AsyncFd;

use super::SqliteStore;
use super::error::Fault;
use super::process::Process;
use super::row::{Client, LockRow, moment, nanos};
use super::session::Session;
use crate::backend::{Claim, Grant, Turn};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::name::Name;
use crate::owner::Owner;

/// How often a waiter says that it is still there.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How long a waiter counts as alive without a heartbeat.
const ALIVE_FOR: Duration = Duration::from_secs(3);

/// A pushed grant lasts no longer, so that one to a waiter that just died lapses soon;
/// a live one renews it to its full TTL at once.
const LONGEST_PUSHED: Duration = Duration::from_secs(3);

/// How soon to look for what is left of a holder that just ended.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// What a look at the database shows to a waiter.
#[derive(Debug)]
enum QueueStatus {
    Granted(Grant),
    /// Neither in the queue nor granted.
    Lost,
    /// In the queue, but nobody holds the lock, or the holder's process is gone: serve it.
    Free,
    /// In the queue behind a holder until this moment, with this process.
    Behind(Moment, Option<Process>),
}

/// Waits until the claim in the queue is granted. Dropping it leaves the place in the queue.
pub(super) async fn wait(store: Arc<SqliteStore>, claim: Claim) -> Result<Turn> {
    if tokio::runtime::Handle::try_current().is_err() {
        return Err(Error::new(ErrorKind::NoRuntime, "waiting needs a tokio runtime"));
    }
    // Listen first, then look: a grant in between must not go unheard (redisson#1763).
    let bell = store.bells.subscribe(claim.owner);
    let mut exit = Exit::default();
    let mut heartbeat_at = store.clock.now() + HEARTBEAT;
    let mut heartbeat = false;
    loop {
        let mut status = status_of(&store, &claim, heartbeat).await?;
        if matches!(status, QueueStatus::Free) && !heartbeat {
            heartbeat = true;
            status = status_of(&store, &claim, true).await?;
        }
        if heartbeat {
            heartbeat_at = store.clock.now() + HEARTBEAT;
        }
        let wake_at = match status {
            QueueStatus::Granted(grant) => return Ok(Turn::Granted(grant)),
            QueueStatus::Lost => return Ok(Turn::TryAgain),
            QueueStatus::Free => heartbeat_at,
            QueueStatus::Behind(expires, process) => {
                exit.watch(&store, process);
                expires.min(heartbeat_at).min(exit.look_again_at(&store))
            }
        };
        heartbeat = tokio::select! {
            biased;
            () = bell.rung() => false,
            () = exit.happens() => true,
            () = store.clock.sleep_until(wake_at) => true,
        };
    }
}

async fn status_of(
    store: &Arc<SqliteStore>,
    claim: &Claim,
    heartbeat: bool,
) -> Result<QueueStatus> {
    let claim = claim.clone();
    let look = move |session: &mut Session| match heartbeat {
        true => session.write(|session| look(session, &claim, true)),
        false => session.read(|session| look(session, &claim, false)),
    };
    store.clone().run(1, look).await
}

/// Looks where we stand. With a heartbeat it also says that we are alive, and serves the queue if
/// nobody holds the lock any more.
fn look(session: &mut Session, claim: &Claim, heartbeat: bool) -> Result<QueueStatus, Fault> {
    let now = session.clock.now();
    let row = session.lock_row(&claim.name)?;
    if let Some(row) = row.as_ref().filter(|row| row.is_live_for(claim.owner, now)) {
        return Ok(QueueStatus::Granted(row.grant()));
    }
    let (lock, owner) = (claim.name.as_str(), claim.owner.to_bytes());
    let find = "select alive_until from waiters where lock = ?1 and owner = ?2";
    let found = session.find(find, params![lock, owner], |row| row.get(0))?;
    let Some(alive_until) = found.map(moment) else {
        return Ok(QueueStatus::Lost);
    };
    if heartbeat {
        let refresh = "update waiters set alive_until = ?3 where lock = ?1 and owner = ?2";
        session.execute(refresh, params![lock, owner, nanos(now + ALIVE_FOR)])?;
    }
    let holder = match row {
        Some(row) if session.is_held(&row, now)? => row,
        _ if !heartbeat => return Ok(QueueStatus::Free),
        // We overslept, so the machine did, and those before us as well: they are late, not
        // dead. Give them until the next heartbeat before they lose their place.
        _ if alive_until <= now && !session.is_first(claim)? => return Ok(QueueStatus::Free),
        row => session.grant_to_first(claim, row.as_ref(), now)?,
    };
    if holder.owner == Some(claim.owner) {
        return Ok(QueueStatus::Granted(holder.grant()));
    }
    let client = session.client(holder.client)?;
    Ok(QueueStatus::Behind(holder.expires, client.map(|client| client.process)))
}

/// Gives up the place in the queue, or the grant that just came.
pub(super) async fn leave(store: Arc<SqliteStore>, claim: Claim) -> Result<()> {
    let leave = move |session: &mut Session| {
        session.write(|session| {
            let now = session.clock.now();
            session.dequeue(&claim.name, claim.owner)?;
            if session.lock_row(&claim.name)?.is_some_and(|row| row.owner == Some(claim.owner)) {
                session.write_free(&claim.name, now)?;
            }
            session.serve(&claim.name, now)
        })
    };
    store.run(1, leave).await
}

/// The first in the queue.
#[derive(Debug)]
struct Waiter {
    sequence: i64,
    owner: Owner,
    ttl: Duration,
    alive_until: Moment,
    client: Client,
}

/// The queue. All inside a write transaction.
impl Session {
    /// Whether there are no waiters at all, and whether there are no tombstones at all. It stays
    /// true in this transaction as far as the transaction itself does not change it.
    pub(super) fn quiet(&self) -> Result<(bool, bool), Fault> {
        let look = "select not exists (select 1 from waiters), not exists (select 1 from bars)";
        Ok(self.prepare(look)?.query_row((), |row| Ok((row.get(0)?, row.get(1)?)))?)
    }

    /// Takes a place in the queue, or keeps the one that it has.
    pub(super) fn enqueue(&mut self, claim: &Claim, now: Moment) -> Result<(), Fault> {
        let (lock, owner) = (claim.name.as_str(), claim.owner.to_bytes());
        let client = self.introduce(&claim.holder)?;
        let ttl = i64::try_from(claim.ttl.as_nanos()).unwrap_or(i64::MAX);
        let place = params![lock, owner, client, ttl, nanos(now + ALIVE_FOR)];
        self.execute(include_str!("sql/enqueue.sql"), place).map(drop)
    }

    pub(super) fn dequeue(&mut self, name: &Name, owner: Owner) -> Result<(), Fault> {
        let delete = "delete from waiters where lock = ?1 and owner = ?2";
        self.execute(delete, params![name.as_str(), owner.to_bytes()]).map(drop)
    }

    /// The first waiter that is alive; those before it are taken out of the queue, or it
    /// would stand still behind a dead one (redisson#3004).
    fn first_live(&mut self, name: &Name, now: Moment) -> Result<Option<Waiter>, Fault> {
        while let Some(first) = self.first(name)? {
            if first.alive_until > now && !self.viewer.is_gone(&first.client.process) {
                return Ok(Some(first));
            }
            let delete = "delete from waiters where lock = ?1 and sequence = ?2";
            self.execute(delete, params![name.as_str(), first.sequence])?;
        }
        Ok(None)
    }

    /// Whether nobody is before this claim.
    fn is_first(&self, claim: &Claim) -> Result<bool, Fault> {
        Ok(self.first(&claim.name)?.is_some_and(|first| first.owner == claim.owner))
    }

    fn first(&self, name: &Name) -> Result<Option<Waiter>, Fault> {
        // `select ?1`: see enqueue.sql.
        const SQL: &str = "select sequence, owner, ttl, alive_until, \
             id, host, pid, label, started, namespace, bell, process_group \
             from waiters cross join clients on clients.id = client \
             where lock = (select ?1) order by sequence limit 1";
        self.find(SQL, [name.as_str()], |row| {
            Ok(Waiter {
                sequence: row.get(0)?,
                owner: Owner::from_bytes(row.get(1)?),
                ttl: Duration::from_nanos(row.get::<_, i64>(2)?.unsigned_abs()),
                alive_until: moment(row.get(3)?),
                client: Client::read(row, 4)?,
            })
        })
    }

    /// Grants a lock that is free, with this row, to the first in the queue; to this claimant if
    /// nobody else is. An owner whose own lease lapsed, with nobody in between, keeps its token:
    /// one owner, one token.
    pub(super) fn grant_to_first(
        &mut self,
        claim: &Claim,
        row: Option<&LockRow>,
        now: Moment,
    ) -> Result<LockRow, Fault> {
        if let Some(first) = self.first_live(&claim.name, now)?
            && first.owner != claim.owner
        {
            return self.push(&claim.name, row, first, now);
        }
        self.dequeue(&claim.name, claim.owner)?;
        let token = match row {
            Some(row) if row.owner == Some(claim.owner) => row.token,
            row => self.next_token(row)?,
        };
        let client = self.introduce(&claim.holder)?;
        self.write_lease(&claim.name, token, (claim.owner, client), now, claim.ttl)
    }

    /// Grants a lock that is free to this waiter, and rings for it after COMMIT.
    fn push(
        &mut self,
        name: &Name,
        row: Option<&LockRow>,
        to: Waiter,
        now: Moment,
    ) -> Result<LockRow, Fault> {
        let token = self.next_token(row)?;
        self.dequeue(name, to.owner)?;
        let term = to.ttl.min(LONGEST_PUSHED);
        let row = self.write_lease(name, token, (to.owner, to.client.id), now, term)?;
        self.rings.push((to.client.bell, to.owner));
        Ok(row)
    }

    /// Lets the next waiter in if the lock is free, lapsed, or its holder's process gone.
    pub(super) fn serve(&mut self, name: &Name, now: Moment) -> Result<(), Fault> {
        let row = match self.lock_row(name)? {
            Some(row) if self.is_held(&row, now)? => return Ok(()),
            row => row,
        };
        let Some(first) = self.first_live(name, now)? else {
            self.crowded.take_if(|crowded| crowded == name);
            return Ok(());
        };
        self.push(name, row.as_ref(), first, now).map(drop)
    }
}

/// The end of the holder's process, where it can be seen.
#[derive(Debug, Default)]
struct Exit {
    process: Option<Process>,
    descriptor: Option<AsyncFd<OwnedFd>>,
    /// How long to wait for its group, which tells nobody of its end.
    pause: Duration,
}

impl Exit {
    fn watch(&mut self, store: &SqliteStore, process: Option<Process>) {
        if self.process != process {
            self.descriptor = process.as_ref().and_then(|process| store.viewer.exit_of(process));
            self.process = process;
            self.pause = FIRST_PAUSE;
        }
    }

    /// When to look whether the group of a process that ended is gone as well: soon,
    /// since as a rule it dies with it, then more and more rarely.
    fn look_again_at(&mut self, store: &SqliteStore) -> Moment {
        let left_behind = |process: &Process| {
            process.group.is_some() && self.descriptor.is_none() && store.viewer.has_ended(process)
        };
        if !self.process.as_ref().is_some_and(left_behind) {
            return Moment::NEVER;
        }
        let pause = self.pause;
        self.pause = HEARTBEAT.min(pause * 2);
        store.clock.now() + pause
    }

    /// Completes once for each process that is watched.
    async fn happens(&mut self) {
        match &self.descriptor {
            // An error would come again at once; the heartbeat looks as well.
            Some(descriptor) => drop(descriptor.readable().await.ok()),
            None => std::future::pending().await,
        }
        self.descriptor = None;
    }
}
