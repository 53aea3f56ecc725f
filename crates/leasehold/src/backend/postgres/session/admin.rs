//! What operators do: look at advisory locks, end one, examine the server. pg_locks says that a
//! lock is held; its holder says the rest.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use tokio_postgres::Row;

use super::super::examine;
use super::key::Key;
use super::{Session, SessionStore, statements};
use crate::backend::kit::time::{at, from_micros};
use crate::backend::{Finding, ForcedInfo, LeaseInfo, LockInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// How long to wait for a holder of ours to say who it is: it does so a moment after.
const PATIENCE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// How long a backend may take to end.
const ENDS_WITHIN: Duration = Duration::from_millis(1_500);
const ENDS_PAUSE: Duration = Duration::from_millis(10);

/// A row of `seen.sql`.
struct Seen {
    backend: i32,
    granted: bool,
    key: Key,
    name: Option<String>,
    lease: LeaseInfo,
    /// One of ours that has not said yet who it is.
    silent: bool,
}

impl Seen {
    fn read(row: &Row) -> Self {
        let backend: i32 = row.get(0);
        let application: Option<String> = row.get(1);
        let application = application.unwrap_or_default();
        let owner = row.get::<_, Option<&[u8]>>(3).and_then(|bytes| bytes.try_into().ok());
        let lease = match owner {
            Some(owner) => {
                let pid = row.get::<_, i32>(6) as u32;
                let holder = Holder::new(row.get::<_, String>(5), pid, row.get::<_, String>(7));
                let by = HeldBy::new(Some(holder), row.get::<_, Option<i64>>(8).map(at));
                let left = from_micros(row.get::<_, Option<i64>>(9).unwrap_or(0));
                let token = row.get::<_, Option<i64>>(4).map(|token| Token::new(token as u64));
                LeaseInfo::new(Some(Owner::from_bytes(owner)), token, by, Some(left))
            }
            None => {
                let label = if application.is_empty() { "a session" } else { &application };
                let holder = Holder::new(row.get::<_, String>(2), backend as u32, label);
                LeaseInfo::new(None, None, HeldBy::new(Some(holder), None), None)
            }
        };
        let key = Key::from_shown(row.get(10), row.get(11), row.get(12));
        let silent = owner.is_none() && application.starts_with("leasehold");
        Self { backend, granted: row.get(14), key, name: row.get(13), lease, silent }
    }
}

pub(super) async fn inspect(store: Arc<SessionStore>, name: Name) -> Result<Option<LockInfo>> {
    let key = Key::of(&name)?;
    let session = store.observer.session().await?;
    let seen = seen(&store, Some(key)).await?.remove(&key).unwrap_or_default();
    let rows = session.rows(&statements::LAST_FORCED, &[&name.as_str()]).await?;
    let forced = rows.first().map(|row| {
        let forced = Forced::new(row.get::<_, String>(0), row.get::<_, String>(1));
        ForcedInfo::new(forced, at(row.get(2)), Token::new(row.get::<_, i64>(3) as u64))
    });
    if seen.is_empty() && forced.is_none() {
        return Ok(None);
    }
    Ok(Some(LockInfo { forced, ..info(&store, name, &seen) }))
}

pub(super) async fn list(store: Arc<SessionStore>, prefix: String) -> Result<Vec<LockInfo>> {
    let named = |(key, seen): (Key, Vec<Seen>)| {
        let own = store.ledger.lock().on_key(key).map(|held| held.claim.name.clone());
        // A foreign lock, or one that is too young, goes by its number.
        let published = || holder(&seen)?.name.clone();
        let numbered = || Name::new(published().unwrap_or_else(|| format!("pg:{key}"))).ok();
        Some(info(&store, own.or_else(numbered)?, &seen))
    };
    let keys = seen(&store, None).await?;
    let mut infos: Vec<LockInfo> = keys.into_iter().filter_map(named).collect();
    infos.retain(|info| info.lease().is_some() && info.name.as_str().starts_with(&prefix));
    infos.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(infos)
}

/// Who holds this key, as far as it is known at once.
pub(super) async fn held_by(store: &SessionStore, key: Key) -> Option<HeldBy> {
    let session = store.observer.session().await.ok()?;
    let seen = look(&session, Some(key)).await.ok()?.remove(&key)?;
    lease(store, &seen).map(|lease| lease.held_by)
}

/// The holders and waiters of one key or of all, a moment later if a holder is about to say who
/// it is.
async fn seen(store: &SessionStore, key: Option<Key>) -> Result<BTreeMap<Key, Vec<Seen>>> {
    let session = store.observer.session().await?;
    let until = store.clock.now() + PATIENCE;
    let mut awaited: Option<HashSet<(Key, i32)>> = None;
    loop {
        let keys = look(&session, key).await?;
        let foreign = keys.values().filter(|seen| own(store, seen).is_none()).flatten();
        let silent = foreign.filter(|seen| seen.granted && seen.silent);
        let mut silent: HashSet<(Key, i32)> = silent.map(|seen| (seen.key, seen.backend)).collect();
        if let Some(awaited) = &awaited {
            silent.retain(|one| awaited.contains(one));
        }
        if silent.is_empty() || store.clock.now() >= until {
            return Ok(keys);
        }
        if key.is_none() {
            // Not for those that come meanwhile: there would be no end to it.
            awaited.get_or_insert(silent);
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn look(session: &Session, key: Option<Key>) -> Result<BTreeMap<Key, Vec<Seen>>> {
    let rows = match key.map(Key::shown) {
        Some((high, low, form)) => session.rows(&statements::LOOK, &[&high, &low, &form]).await?,
        None => session.rows(&statements::LIST, &[]).await?,
    };
    let mut keys: BTreeMap<Key, Vec<Seen>> = BTreeMap::new();
    for seen in rows.iter().map(Seen::read) {
        keys.entry(seen.key).or_default().push(seen);
    }
    Ok(keys)
}

fn info(store: &SessionStore, name: Name, seen: &[Seen]) -> LockInfo {
    let waiters = seen.iter().filter(|seen| !seen.granted).count();
    LockInfo { waiters, ..LockInfo::free(name).held(lease(store, seen)) }
}

fn holder(seen: &[Seen]) -> Option<&Seen> {
    seen.iter().find(|seen| seen.granted)
}

fn lease(store: &SessionStore, seen: &[Seen]) -> Option<LeaseInfo> {
    own(store, seen).or_else(|| Some(holder(seen)?.lease.clone()))
}

/// What we know ourselves, where it is we who hold it.
fn own(store: &SessionStore, seen: &[Seen]) -> Option<LeaseInfo> {
    let holder = holder(seen)?;
    let ledger = store.ledger.lock();
    let held = ledger.on_key(holder.key)?;
    let ours = held.lifeline.session.backend == holder.backend;
    ours.then(|| held.info(store.clock.now()))
}

/// Takes a lock away: its holder's session is ended, and with it *all* its locks.
pub(super) async fn force_release(
    store: Arc<SessionStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    let key = Key::of(&name)?;
    let seen = seen(&store, Some(key)).await?.remove(&key).unwrap_or_default();
    let Some(Seen { backend, .. }) = holder(&seen) else { return Ok(None) };
    let session = store.observer.session().await?;
    let count = async || session.row(&statements::COUNT, &[backend]).await;
    let locks = async || Ok::<i64, Error>(count().await?.get(0));
    let others = locks().await? - 1;
    if others > 0 && !store.settings.force_sessions {
        let message = format!(
            "its holder's session (backend {backend}) has {others} more locks, which would end \
             with it; to do it all the same, connect with force=session in the URL"
        );
        return Err(Error::new(ErrorKind::Refused, message));
    }
    // A foreign holder has no token: zero stands for it in the record.
    let token = lease(&store, &seen).and_then(|lease| lease.token).unwrap_or(Token::new(0));
    let (lock, number) = (name.as_str(), token.get() as i64);
    let (by, reason) = (&*forced.by, &*forced.reason);
    // First the record, so that the holder finds out why.
    session.rows(&statements::RECORD, &[&lock, &number, &by, &reason]).await?;
    session.rows(&statements::TERMINATE, &[backend]).await?;
    let until = store.clock.now() + ENDS_WITHIN;
    while locks().await? != 0 {
        if store.clock.now() >= until {
            let message = format!("backend {backend} was told to end, but still has its locks");
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        tokio::time::sleep(ENDS_PAUSE).await;
    }
    Ok(Some(token))
}

pub(super) async fn examine(store: Arc<SessionStore>) -> Result<Vec<Finding>> {
    let session = store.observer.session().await?;
    let mut findings = examine::server(&session).await?;
    findings.push(examine::tokens(&session).await?);
    findings.push(examine::letting_go(session.version));
    Ok(findings)
}
