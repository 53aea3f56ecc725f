//! What a lock's key says: who is behind it. For people, and to know our own keys again.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use crate::backend::{Claim, ForcedInfo};
use crate::clock::Clock;
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::owner::Owner;
use crate::token::Token;

/// The value of a claim's key.
pub(super) fn of_claim(claim: &Claim, clock: &Clock) -> String {
    let Holder { host, pid, label, process_group } = &*claim.holder;
    let mut value = json!({
        "owner": claim.owner.to_string(),
        "host": host,
        "pid": pid,
        "label": label,
        "since": clock.wall_micros(),
    });
    // Not said where there is none: it travels with every claim.
    if let Some(group) = process_group {
        value["process_group"] = (*group).into();
    }
    value.to_string()
}

/// Whose key this is; `None` for a foreign client.
pub(super) fn owner(value: &[u8]) -> Option<Owner> {
    parse(value)?.get("owner")?.as_str()?.parse().ok()
}

/// Who is behind it, as far as the value says.
pub(super) fn held_by(value: &[u8]) -> HeldBy {
    let Some(json) = parse(value) else { return HeldBy::new(None, None) };
    let text = |key: &str| json.get(key)?.as_str().map(str::to_owned);
    let number = |key: &str| json.get(key)?.as_u64();
    let holder = || {
        let pid = u32::try_from(number("pid")?).ok()?;
        let mut holder = Holder::new(text("host")?, pid, text("label")?);
        holder.process_group = number("process_group").and_then(|group| group.try_into().ok());
        Some(holder)
    };
    HeldBy::new(holder(), number("since").and_then(moment))
}

/// The value of a force-release's record.
pub(super) fn of_forced(forced: &Forced, at: SystemTime) -> String {
    let at = at.duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
    json!({ "by": forced.by, "reason": forced.reason, "at": at as u64 }).to_string()
}

/// A record, read back.
pub(super) fn forced(value: &[u8], token: Token) -> Option<ForcedInfo> {
    let json = parse(value)?;
    let text = |key: &str| json.get(key)?.as_str();
    let at = json.get("at")?.as_u64().and_then(moment)?;
    Some(ForcedInfo::new(Forced::new(text("by")?, text("reason")?), at, token))
}

fn parse(value: &[u8]) -> Option<Json> {
    serde_json::from_slice(value).ok()
}

fn moment(micros: u64) -> Option<SystemTime> {
    UNIX_EPOCH.checked_add(Duration::from_micros(micros))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::name::Name;

    #[test]
    fn a_value_is_read_back() {
        let mut holder = Holder::new("host \"q\"", 7, "größe");
        holder.process_group = Some(9);
        let name = Name::new("n").unwrap();
        let claim = Claim::new(name, Duration::from_secs(1), Arc::new(holder.clone()));
        let text = of_claim(&claim, &Clock::boot());
        assert_eq!(owner(text.as_bytes()), Some(claim.owner));
        assert_eq!(held_by(text.as_bytes()).holder, Some(holder));
    }

    #[test]
    fn foreign_values_say_nothing() {
        for value in [&b""[..], b"{}", b"hello", b"[1]", b"{\"owner\":\"zz\"}", &[0xff]] {
            assert_eq!(owner(value), None);
            assert_eq!(held_by(value), HeldBy::new(None, None));
            assert_eq!(forced(value, Token::new(1)), None);
        }
    }
}
