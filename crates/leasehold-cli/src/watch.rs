//! `leasehold watch`: what changes, line by line. It polls, so what came and went
//! between two looks is not seen.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use leasehold::{ErrorKind, LockInfo, Locks, Name, Result};
use tokio::signal::unix::{SignalKind, signal};

use crate::args::Watch;
use crate::change::{Change, changes};
use crate::config::Config;
use crate::exit::{Failure, tell};
use crate::plan::checked;
use crate::screen;
use crate::store::{Store, refused};

/// Prints changes until it is interrupted.
pub(crate) fn watch(args: Watch, config: &Config) -> Result<u8, Failure> {
    let name = args.name.as_deref().map(checked).transpose()?;
    Store::resolve(args.on, config)?.with("leasehold watch", async |locks: Locks| {
        let no_signals = |error| Failure::broken("no signals", &error);
        let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
        let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
        let mut watcher = Watcher { locks, name, json: args.json, seen: None, silent: false };
        loop {
            tokio::select! {
                _ = interrupt.recv() => return Ok(0),
                _ = terminate.recv() => return Ok(0),
                is_read = watcher.turn(args.every) => if !is_read? { return Ok(0) },
            }
        }
    })
}

struct Watcher {
    locks: Locks,
    name: Option<Name>,
    json: bool,
    /// Every lock of interest at the last look; `None` before the first.
    seen: Option<BTreeMap<Name, LockInfo>>,
    /// The store did not answer the last time.
    silent: bool,
}

impl Watcher {
    /// Looks once, and rests; whether anyone still reads.
    async fn turn(&mut self, every: Duration) -> Result<bool, Failure> {
        let is_read = self.look().await?;
        if is_read {
            tokio::time::sleep(every).await;
        }
        Ok(is_read)
    }

    /// Looks once and prints what changed; whether anyone still reads it.
    async fn look(&mut self) -> Result<bool, Failure> {
        let now = match self.ask().await {
            Ok(now) => now,
            Err(error) => {
                let passing = [ErrorKind::Unreachable, ErrorKind::Unavailable];
                if self.seen.is_none() || !passing.contains(error.kind()) {
                    return Err(refused(error));
                }
                if !self.silent {
                    tell(format_args!("{error}; still trying"));
                }
                self.silent = true;
                return Ok(true);
            }
        };
        if std::mem::take(&mut self.silent) {
            tell("the store answers again");
        }
        if self.seen.is_none() && now.is_empty() && !self.json {
            tell("no lock is held or waited for; watching, Ctrl-C ends it");
        }
        for (name, info) in &now {
            let before = self.seen.as_ref().map(|seen| seen.get(name));
            for change in changes(before, info) {
                if !self.print(&change).await? {
                    return Ok(false);
                }
            }
        }
        // What is neither held nor waited for is not listed any more.
        let keep =
            |info: &LockInfo| self.name.is_some() || info.lease().is_some() || info.waiters > 0;
        self.seen = Some(now.into_iter().filter(|(_, info)| keep(info)).collect());
        Ok(true)
    }

    /// The locks of interest, with those that were before.
    async fn ask(&self) -> Result<BTreeMap<Name, LockInfo>> {
        let listed = match &self.name {
            Some(name) => vec![self.locks.inspect(name).await?],
            None => self.locks.list("").await?,
        };
        let mut now: BTreeMap<_, _> =
            listed.into_iter().map(|info| (info.name.clone(), info)).collect();
        for name in self.seen.iter().flat_map(BTreeMap::keys) {
            if !now.contains_key(name) {
                now.insert(name.clone(), self.locks.inspect(name).await?);
            }
        }
        Ok(now)
    }

    /// Prints a change; whether anyone still reads.
    async fn print(&self, change: &Change<'_>) -> Result<bool, Failure> {
        let at = SystemTime::now();
        let text = match self.json {
            true => screen::json_line(&change.report(at))?,
            false => change.line(at),
        };
        // On another thread: while the reader does not read, a signal must end this one.
        let printing = tokio::task::spawn_blocking(move || screen::print(&text)).await;
        printing.map_err(|error| Failure::broken("cannot write the output", &error))?
    }
}
