//! What a node says about its holder: JSON, for people who look with `zkCli` as well.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use zookeeper_client::Stat;

use crate::backend::{Claim, ForcedInfo, LeaseInfo};
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// The data of a claim's node. When the lock was granted, in milliseconds since 1970, is not
/// known yet while the claim waits.
pub(super) fn of(claim: &Claim, since: Option<u64>) -> Vec<u8> {
    let Holder { host, pid, label, process_group } = &*claim.holder;
    let ttl = claim.ttl.as_millis() as u64;
    let mut payload = json!({ "host": host, "pid": pid, "label": label, "ttl_ms": ttl });
    if let Some(group) = process_group {
        payload["process_group"] = json!(group);
    }
    if let Some(since) = since {
        payload["since_ms"] = json!(since);
    }
    payload.to_string().into_bytes()
}

/// A lease as its node shows it; foreign nodes say less.
pub(super) fn read(owner: Option<Owner>, data: &[u8], stat: &Stat, now: SystemTime) -> LeaseInfo {
    let ours = |payload: &Value| payload.get("pid").is_some();
    let payload: Value = serde_json::from_slice(data).ok().filter(ours).unwrap_or_default();
    let text = |key: &str| payload[key].as_str().unwrap_or_default();
    let small = |key: &str| payload[key].as_u64().and_then(|number| u32::try_from(number).ok());
    let holder = small("pid").map(|pid| {
        let holder = Holder::new(text("host"), pid, text("label"));
        Holder { process_group: small("process_group"), ..holder }
    });
    let since = payload["since_ms"].as_u64().map_or_else(|| at(stat.ctime), at);
    let remaining = payload["ttl_ms"].as_u64().map(|ttl| {
        let age = now.duration_since(at(stat.mtime)).unwrap_or_default();
        Duration::from_millis(ttl).saturating_sub(age)
    });
    LeaseInfo::new(owner, Some(token(stat)), HeldBy::new(holder, Some(since)), remaining)
}

/// The token of the lease behind a node: the transaction that created it.
pub(super) fn token(stat: &Stat) -> Token {
    // Transaction numbers are positive.
    Token::new(stat.czxid.unsigned_abs())
}

/// The record of a force-release.
pub(super) fn record(name: &Name, ForcedInfo { forced, at, token }: &ForcedInfo) -> Vec<u8> {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
    let (name, Forced { by, reason }, token) = (name.as_str(), forced, token.get());
    json!({ "lock": name, "by": by, "reason": reason, "at_ms": at, "token": token })
        .to_string()
        .into_bytes()
}

/// The record, and the lock it is about.
pub(super) fn read_record(data: &[u8]) -> Option<(Name, ForcedInfo)> {
    let record: Value = serde_json::from_slice(data).ok()?;
    let text = |key: &str| record[key].as_str();
    let number = |key: &str| record[key].as_u64();
    let forced = Forced::new(text("by")?, text("reason")?);
    let info = ForcedInfo::new(forced, at(number("at_ms")?), Token::new(number("token")?));
    Some((Name::new(text("lock")?).ok()?, info))
}

/// A server's time, in milliseconds since 1970.
fn at(millis: impl TryInto<u64>) -> SystemTime {
    UNIX_EPOCH + Duration::from_millis(millis.try_into().unwrap_or_default())
}
