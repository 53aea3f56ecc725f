//! Waiting in line: until the bell rings, the holder's time is up, its process ends,
//! or a heartbeat is due. The database is the truth; all of these only say when to look.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{OptionalExtension, params};
use tokio::io::unix::AsyncFd;

use super::SqliteStore;
use super::claim::retake;
use super::connection::Session;
use super::error::Fault;
use super::process::Process;
use super::queue::ALIVE_FOR;
use super::row::{LockRow, moment, nanos};
use crate::backend::{Claim, Grant, Turn};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// How often a waiter says that it is still there.
const BEAT: Duration = Duration::from_secs(1);

/// How soon to look for what is left of a holder that just ended.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// What a look at the database shows to a waiter.
#[derive(Debug)]
enum Standing {
    Granted(Grant),
    /// Neither in line nor granted.
    Lost,
    /// In line, but nobody holds the lock, or the holder's process is gone: serve it.
    Free,
    /// In line behind a holder until this moment, with this process.
    Behind(Moment, Option<Process>),
}

impl SqliteStore {
    /// Waits until the claim in line is granted. Dropping it leaves the place in line.
    pub(super) async fn wait_in_line(self: Arc<Self>, claim: Claim) -> Result<Turn> {
        if tokio::runtime::Handle::try_current().is_err() {
            return Err(Error::new(ErrorKind::NoRuntime, "waiting needs a tokio runtime"));
        }
        // Listen first, then look: a grant in between must not go unheard (redisson#1763).
        let seat = self.bells.listen(claim.owner);
        let mut exit = Exit::default();
        let mut beat_at = self.clock.now() + BEAT;
        let mut beats = false;
        loop {
            let mut standing = self.clone().stand(&claim, beats).await?;
            if matches!(standing, Standing::Free) && !beats {
                beats = true;
                standing = self.clone().stand(&claim, true).await?;
            }
            if beats {
                beat_at = self.clock.now() + BEAT;
            }
            let wake_at = match standing {
                Standing::Granted(grant) => return Ok(Turn::Granted(grant)),
                Standing::Lost => return Ok(Turn::TryAgain),
                Standing::Free => beat_at,
                Standing::Behind(expires, process) => {
                    exit.watch(&self, process);
                    expires.min(beat_at).min(exit.look_again_at(&self))
                }
            };
            beats = tokio::select! {
                biased;
                () = seat.rung() => false,
                () = exit.happens() => true,
                () = self.clock.sleep_until(wake_at) => true,
            };
        }
    }

    async fn stand(self: Arc<Self>, claim: &Claim, beats: bool) -> Result<Standing> {
        let claim = claim.clone();
        self.run(1, move |session| match beats {
            true => session.write(|session| beat(session, &claim)),
            false => session.read(|session| look(session, &claim)),
        })
        .await
    }
}

fn look(session: &mut Session, claim: &Claim) -> Result<Standing, Fault> {
    let now = session.clock.now();
    let row = session.lock_row(&claim.name)?;
    if let Some(row) = row.as_ref().filter(|row| row.is_live_for(claim.owner, now)) {
        return Ok(Standing::Granted(row.grant()));
    }
    if alive_until(session, claim)?.is_none() {
        return Ok(Standing::Lost);
    }
    match row.filter(|row| row.is_live(now)) {
        Some(row) if !session.is_gone(&row)? => behind(session, &row),
        _ => Ok(Standing::Free),
    }
}

/// Says that we are alive, and serves the line if nobody holds the lock any more.
fn beat(session: &mut Session, claim: &Claim) -> Result<Standing, Fault> {
    let now = session.clock.now();
    let row = session.lock_row(&claim.name)?;
    if let Some(row) = row.as_ref().filter(|row| row.is_live_for(claim.owner, now)) {
        return Ok(Standing::Granted(row.grant()));
    }
    let Some(alive_until) = alive_until(session, claim)? else {
        return Ok(Standing::Lost);
    };
    let refresh = "update waiters set alive_until = ?3 where lock = ?1 and owner = ?2";
    session.prepare(refresh)?.execute(params![
        claim.name.as_str(),
        claim.owner.to_bytes(),
        nanos(now + ALIVE_FOR)
    ])?;
    if let Some(row) = row.as_ref().filter(|row| row.is_live(now))
        && !session.is_gone(row)?
    {
        return behind(session, row);
    }
    // We overslept, so the machine did, and those before us as well: they are late, not
    // dead. Give them until the next heartbeat before they lose their place.
    if alive_until <= now && !session.is_first(&claim.name, claim.owner)? {
        return Ok(Standing::Free);
    }
    match session.first_live(&claim.name, now)? {
        Some(first) if first.owner != claim.owner => {
            let last = row.map_or(crate::Token::new(0), |row| row.token);
            let pushed = session.push(&claim.name, last, &first, now)?;
            behind(session, &pushed)
        }
        _ => {
            session.dequeue(&claim.name, claim.owner)?;
            let client = session.introduce(&claim.holder)?;
            let row = retake(session, claim, row.as_ref(), client, now)?;
            Ok(Standing::Granted(row.grant()))
        }
    }
}

fn behind(session: &Session, row: &LockRow) -> Result<Standing, Fault> {
    let client = session.client(row.client)?;
    Ok(Standing::Behind(row.expires, client.map(|client| client.process)))
}

fn alive_until(session: &Session, claim: &Claim) -> Result<Option<Moment>, Fault> {
    let find = "select alive_until from waiters where lock = ?1 and owner = ?2";
    let found = session
        .prepare(find)?
        .query_row(params![claim.name.as_str(), claim.owner.to_bytes()], |row| row.get(0))
        .optional()?;
    Ok(found.map(moment))
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
        self.pause = BEAT.min(pause * 2);
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
