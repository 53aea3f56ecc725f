//! Looking at locks, and taking one away from its holder.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use super::connection::Value;
use super::error::unexpected;
pub(super) use super::examine::examine;
use super::keys::Companion::{Forced as ForcedKey, Queue, Record as RecordKey};
use super::keys::lock_key_of;
use super::script::{
    Call, FORCE, INSPECT, Record, bytes, items, left, micros, millis, number, parts, text, token,
};
use super::session::Server;
use super::topology::Located;
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::holder::HeldBy;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// The `COUNT` of one step of a scan.
const STEP: &str = "1000";
/// The most locks of one call.
const AT_ONCE: usize = 100;
/// How long the record of a force-release is kept.
pub(crate) const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

pub(super) async fn inspect(store: Arc<RedisStore>, name: Name) -> Result<Option<LockInfo>> {
    store.keys(&name).check()?;
    let info = look(&store, vec![name]).await?.pop();
    Ok(info.filter(|info| info.lease().is_some() || info.waiters > 0 || info.forced.is_some()))
}

/// Every lock that is held or waited for, of all servers.
pub(super) async fn list(store: Arc<RedisStore>, prefix: String) -> Result<Vec<LockInfo>> {
    let mut names = BTreeSet::new();
    for server in store.topology.masters().await? {
        names.extend(names_at(&server, &store.settings.prefix, &prefix).await?);
    }
    let names: Vec<_> = names.into_iter().collect();
    let mut infos = Vec::with_capacity(names.len());
    for some in names.chunks(AT_ONCE) {
        infos.extend(look(&store, some.to_vec()).await?);
    }
    infos.retain(|info| info.lease().is_some() || info.waiters > 0);
    Ok(infos)
}

pub(super) async fn force_release(
    store: Arc<RedisStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    let keys = store.keys(&name);
    keys.check()?;
    let mut call = Call::new(&FORCE, keys.slot, 4);
    call.keys(&keys, &[RecordKey, Queue, ForcedKey]);
    call.arg(forced.by).arg(forced.reason).arg(millis(REMEMBERED));
    match store.topology.call(&call).await? {
        Value::Nil => Ok(None),
        Value::Int(ended) => token(ended).map(Some),
        _ => Err(unexpected()),
    }
}

async fn look(store: &RedisStore, names: Vec<Name>) -> Result<Vec<LockInfo>> {
    let names = store.locate(names, |name| name);
    store.topology.by_slot(names, |some| look_in_slot(store, some)).await
}

async fn look_in_slot(store: &RedisStore, names: Vec<Located<Name>>) -> Result<Vec<LockInfo>> {
    let mut call = Call::new(&INSPECT, names[0].0.slot, 4 * names.len());
    for (keys, _) in &names {
        call.keys(keys, &[RecordKey, Queue, ForcedKey]);
    }
    let answers = items(store.topology.call(&call).await?, names.len())?;
    names.into_iter().zip(&answers).map(|((_, name), answer)| info(name, answer)).collect()
}

fn info(name: Name, answer: &Value) -> Result<LockInfo> {
    let Seen { value, remaining, record, waiters, forced } = Seen::read(answer)?;
    let lease = value.map(|value| {
        let known = Record::of(&record, &value, |owner| owner.parse().ok());
        let mut lease = lease(known, remaining);
        // The key exists and has no remaining time, so it never expires.
        lease.held_by.never_expires = remaining.is_none();
        lease
    });
    Ok(LockInfo { waiters, forced, ..LockInfo::free(name).held(lease) })
}

/// The lease that a record describes.
pub(crate) fn lease(known: Option<Record>, remaining: Option<Duration>) -> LeaseInfo {
    match known {
        Some(Record { owner, token, held_by }) => {
            LeaseInfo::new(Some(owner), Some(token), held_by, remaining)
        }
        None => LeaseInfo::new(None, None, HeldBy::new(None, None), remaining),
    }
}

/// A lock as one server sees it.
pub(crate) struct Seen {
    /// What the lock's key holds.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) remaining: Option<Duration>,
    pub(crate) record: Value,
    pub(crate) waiters: usize,
    pub(crate) forced: Option<ForcedInfo>,
}

impl Seen {
    pub(crate) fn read(answer: &Value) -> Result<Self> {
        let [exists, holds, left_for, record, waiters, token, at, by, reason] = parts(answer)?;
        let mut forced = None;
        if let (Ok(token), Some(at)) = (text(token)?.parse(), micros(text(at)?)) {
            let who = Forced::new(text(by)?, text(reason)?);
            forced = Some(ForcedInfo::new(who, at, Token::new(token)));
        }
        Ok(Self {
            value: if number(exists)? == 1 { Some(bytes(holds)?.to_vec()) } else { None },
            remaining: left(number(left_for)?),
            record: record.clone(),
            waiters: usize::try_from(number(waiters)?).map_err(|_| unexpected())?,
            forced,
        })
    }
}

/// The names at a server that begin with `prefix`. `store` is the prefix of the keys.
///
/// It uses SCAN, never KEYS, which would block the server. A queue counts as its lock, which may
/// be free for a moment.
pub(crate) async fn names_at(
    server: &Arc<Server>,
    store: &str,
    prefix: &str,
) -> Result<BTreeSet<Name>> {
    let wanted = format!("{store}{prefix}");
    let pattern = format!("*{}*", escaped(&wanted));
    let mut names = BTreeSet::new();
    let mut cursor = "0".to_owned();
    loop {
        let scan = ["SCAN", &cursor, "MATCH", &pattern, "COUNT", STEP];
        let answer = server.ask_in_time(&scan).await?;
        let [next, Value::Array(keys)] = parts(&answer)? else { return Err(unexpected()) };
        // Names of ours are text.
        for key in keys.iter().filter_map(|key| text(key).ok()) {
            let key = lock_key_of(key).filter(|key| key.starts_with(&wanted));
            let name = key.and_then(|key| key.strip_prefix(store));
            names.extend(name.and_then(|name| Name::new(name).ok()));
        }
        cursor = text(next)?.to_owned();
        if cursor == "0" {
            return Ok(names);
        }
    }
}

/// Escapes a literal for a glob.
fn escaped(literal: &str) -> String {
    let mut pattern = String::with_capacity(literal.len());
    for character in literal.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(escaped("lock:a*b?[x-y]\\^"), "lock:a\\*b\\?\\[x\\-y\\]\\\\\\^");
    }
}
