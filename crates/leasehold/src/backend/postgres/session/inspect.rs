//! Looking at advisory locks: pg_locks says that one is held, its holder says the rest.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::super::key::Key;
use super::{SessionStore, verbs};
use crate::backend::kit::time::at as wall;
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How long to wait for a holder of ours to say who it is: it does so a moment after.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// A row of `look.sql`.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) backend: i32,
    pub(super) granted: bool,
    pub(super) key: Key,
    name: Option<String>,
    lease: LeaseInfo,
    /// One of ours that has not said yet who it is.
    silent: bool,
}

impl Seen {
    fn read(row: &Row) -> Self {
        let backend: i32 = row.get(0);
        let application: Option<String> = row.get(1);
        let owner = row.get::<_, Option<&[u8]>>(3).and_then(|bytes| bytes.try_into().ok());
        let key = Key::from_shown(row.get(10), row.get(11), row.get(12));
        let application = application.unwrap_or_default();
        let lease = match owner {
            Some(owner) => {
                let holder = Holder::new(
                    row.get::<_, String>(5),
                    row.get::<_, i32>(6) as u32,
                    row.get::<_, String>(7),
                );
                let by = HeldBy::new(Some(holder), row.get::<_, Option<i64>>(8).map(wall));
                let left = row.get::<_, Option<i64>>(9).unwrap_or(0);
                let remaining = Duration::from_micros(u64::try_from(left).unwrap_or(0));
                let token = row.get::<_, Option<i64>>(4).map(|token| Token::new(token as u64));
                LeaseInfo::new(Some(Owner::from_bytes(owner)), token, by, Some(remaining))
            }
            None => {
                let label = if application.is_empty() { "a session" } else { &application };
                let holder = Holder::new(row.get::<_, String>(2), backend as u32, label);
                LeaseInfo::new(None, None, HeldBy::new(Some(holder), None), None)
            }
        };
        let silent = owner.is_none() && application.starts_with("leasehold");
        Self { backend, granted: row.get(14), key, name: row.get(13), lease, silent }
    }
}

impl SessionStore {
    pub(super) async fn look_at(self: &Arc<Self>, name: &Name) -> Result<Option<LockInfo>> {
        let key = Key::of(name)?;
        let session = self.aside.session().await?;
        let seen = self.seen(key).await?;
        let rows = session.rows(&verbs::LAST_FORCED, &[&name.as_str()]).await?;
        let forced = rows.first().map(|row| {
            let forced = Forced::new(row.get::<_, String>(0), row.get::<_, String>(1));
            ForcedInfo::new(forced, wall(row.get(2)), Token::new(row.get::<_, i64>(3) as u64))
        });
        if seen.is_empty() && forced.is_none() {
            return Ok(None);
        }
        let waiters = seen.iter().filter(|seen| !seen.granted).count();
        let lease = self.lease(&seen);
        Ok(Some(LockInfo { lease, waiters, forced, ..LockInfo::free(name.clone()) }))
    }

    /// Who has this key and who waits for it; a moment later if its holder is about to say.
    pub(super) async fn seen(&self, key: Key) -> Result<Vec<Seen>> {
        let session = self.aside.session().await?;
        let until = self.clock.now() + PATIENCE;
        let (high, low, form) = key.shown();
        loop {
            let rows = session.rows(&verbs::LOOK, &[&high, &low, &form]).await?;
            let seen: Vec<Seen> = rows.iter().map(Seen::read).collect();
            let told = !seen.iter().any(|seen| seen.granted && seen.silent)
                || self.own(key, &seen).is_some();
            if told || self.clock.now() >= until {
                return Ok(seen);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) fn lease(&self, seen: &[Seen]) -> Option<LeaseInfo> {
        let holder = seen.iter().find(|seen| seen.granted)?;
        self.own(holder.key, seen).or_else(|| Some(holder.lease.clone()))
    }

    /// What we know ourselves, where it is we who hold it.
    fn own(&self, key: Key, seen: &[Seen]) -> Option<LeaseInfo> {
        let holder = seen.iter().find(|seen| seen.granted)?;
        let table = self.table.lock();
        let held = table.on_key(key).filter(|held| held.line.backend() == holder.backend)?;
        Some(held.info(self.clock.now()))
    }

    /// Who holds this key, as far as it is known at once.
    pub(super) async fn held_by(&self, key: Key) -> Option<HeldBy> {
        let (high, low, form) = key.shown();
        let session = self.aside.session().await.ok()?;
        let rows = session.rows(&verbs::LOOK, &[&high, &low, &form]).await.ok()?;
        let seen: Vec<Seen> = rows.iter().map(Seen::read).collect();
        self.lease(&seen).map(|lease| lease.held_by)
    }

    /// Who has and waits for what; a moment later if holders are about to say.
    async fn seen_all(&self) -> Result<BTreeMap<Key, Vec<Seen>>> {
        let session = self.aside.session().await?;
        let until = self.clock.now() + PATIENCE;
        let mut awaited: Option<HashSet<(Key, i32)>> = None;
        loop {
            let rows = session.rows(&verbs::LIST, &[]).await?;
            let mut keys: BTreeMap<Key, Vec<Seen>> = BTreeMap::new();
            for seen in rows.iter().map(Seen::read) {
                keys.entry(seen.key).or_default().push(seen);
            }
            let silent = keys.iter().filter(|(key, seen)| self.own(**key, seen).is_none());
            let silent = silent.flat_map(|(_, seen)| seen);
            let silent: HashSet<(Key, i32)> = silent
                .filter(|seen| seen.granted && seen.silent)
                .map(|seen| (seen.key, seen.backend))
                .collect();
            // Not for those that came meanwhile: there would be no end to it.
            let left = match &awaited {
                Some(awaited) => awaited.intersection(&silent).count(),
                None => silent.len(),
            };
            if left == 0 || self.clock.now() >= until {
                return Ok(keys);
            }
            awaited.get_or_insert(silent);
            tokio::time::sleep(PAUSE).await;
        }
    }

    pub(super) async fn look_at_all(self: &Arc<Self>, prefix: &str) -> Result<Vec<LockInfo>> {
        let keys = self.seen_all().await?;
        let mut infos: Vec<LockInfo> = keys
            .into_iter()
            .filter_map(|(key, seen)| {
                let lease = self.lease(&seen)?;
                let told = seen.iter().find(|seen| seen.granted)?.name.clone();
                let own = self.table.lock().on_key(key).map(|held| held.claim.name.clone());
                // A foreign lock, or one that is too young, goes by its number.
                let name = own.map_or_else(
                    || told.unwrap_or_else(|| format!("pg:{key}")),
                    |name| name.to_string(),
                );
                let waiters = seen.iter().filter(|seen| !seen.granted).count();
                let name = Name::new(name).ok()?;
                Some(LockInfo { lease: Some(lease), waiters, ..LockInfo::free(name) })
            })
            .filter(|info| info.name.as_str().starts_with(prefix))
            .collect();
        infos.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(infos)
    }
}
