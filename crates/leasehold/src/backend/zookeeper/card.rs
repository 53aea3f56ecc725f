//! What a node says about its holder: JSON, for people who look with `zkCli` as well.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use zookeeper_client::Stat;

use crate::backend::{ForcedInfo, LeaseInfo};
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// The data of a lock's node.
#[derive(Debug, Clone)]
pub(super) struct Card {
    pub(super) holder: Arc<Holder>,
    pub(super) ttl: Duration,
    /// When the lock was granted, in milliseconds since 1970; not known yet while it waits.
    pub(super) since: Option<u64>,
}

impl Card {
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let Holder { host, pid, label, process_group } = &*self.holder;
        let ttl = self.ttl.as_millis() as u64;
        let mut card = json!({ "host": host, "pid": pid, "label": label, "ttl_ms": ttl });
        if let Some(group) = process_group {
            card["process_group"] = json!(group);
        }
        if let Some(since) = self.since {
            card["since_ms"] = json!(since);
        }
        card.to_string().into_bytes()
    }
}

/// A lease as its node shows it; foreign nodes say less.
pub(super) fn read(owner: Option<Owner>, data: &[u8], stat: &Stat, now: SystemTime) -> LeaseInfo {
    let card = serde_json::from_slice::<Value>(data).ok().filter(|card| card.get("pid").is_some());
    let text = |key: &str| card.as_ref()?.get(key)?.as_str().map(str::to_owned);
    let number = |key: &str| card.as_ref()?.get(key)?.as_u64();
    let pid = number("pid").and_then(|pid| u32::try_from(pid).ok());
    let holder = pid.map(|pid| {
        let mut holder =
            Holder::new(text("host").unwrap_or_default(), pid, text("label").unwrap_or_default());
        holder.process_group = number("process_group").and_then(|group| u32::try_from(group).ok());
        holder
    });
    let since = number("since_ms").map_or_else(|| moment(stat.ctime), after_epoch);
    let remaining = number("ttl_ms").map(|ttl| {
        let age = now.duration_since(moment(stat.mtime)).unwrap_or_default();
        Duration::from_millis(ttl).saturating_sub(age)
    });
    LeaseInfo::new(owner, Some(token(stat)), HeldBy::new(holder, Some(since)), remaining)
}

/// The token of the lease behind a node: the transaction that created it.
pub(super) fn token(stat: &Stat) -> Token {
    // Transaction numbers are positive.
    Token::new(stat.czxid.unsigned_abs())
}

/// The token of all that was created in the transaction that last wrote this node. Before
/// 3.8.2 the answers to a `multi` do not tell it otherwise (ZOOKEEPER-4026, -4667).
pub(super) fn token_of_write(stat: &Stat) -> Token {
    Token::new(stat.mzxid.unsigned_abs())
}

/// The record of a force-release.
pub(super) fn record(name: &Name, forced: &ForcedInfo) -> Vec<u8> {
    let at = forced.at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let Forced { by, reason } = &forced.forced;
    let token = forced.token.get();
    let name = name.as_str();
    json!({ "lock": name, "by": by, "reason": reason, "at_ms": at, "token": token })
        .to_string()
        .into_bytes()
}

/// The record, and the lock it is about.
pub(super) fn read_record(data: &[u8]) -> Option<(Name, ForcedInfo)> {
    let record = serde_json::from_slice::<Value>(data).ok()?;
    let text = |key: &str| Some(record.get(key)?.as_str()?.to_owned());
    let number = |key: &str| record.get(key)?.as_u64();
    let name = Name::new(text("lock")?).ok()?;
    let forced = Forced::new(text("by")?, text("reason")?);
    let (at, token) = (after_epoch(number("at_ms")?), Token::new(number("token")?));
    Some((name, ForcedInfo::new(forced, at, token)))
}

fn moment(millis: i64) -> SystemTime {
    after_epoch(u64::try_from(millis).unwrap_or_default())
}

fn after_epoch(millis: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis)
}
