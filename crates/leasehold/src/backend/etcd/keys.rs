//! Where things are in etcd. The lock keys are those of `etcdctl lock` and of Go's
//! `concurrency.Mutex` (`name/` + the lease id in lower-case hex), so that all of them
//! exclude each other. Do not change this: other programs rely on it.
//!
//! Their values say who is behind them: for people, and to know our own keys again.

use std::ops::Range;
use std::time::SystemTime;

use serde_json::{Value as Json, json};

use crate::backend::kit::time;
use crate::backend::{Claim, ForcedInfo};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// Below the root, what is no lock: names that begin so are refused.
const RESERVED: &str = ".leasehold/";

/// The keys of one store.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    /// Empty, or a prefix that ends with a slash.
    root: String,
}

impl Layout {
    pub(super) fn below(prefix: &str) -> Self {
        let root = if prefix.is_empty() { String::new() } else { format!("{prefix}/") };
        Self { root }
    }

    /// The name, unless its keys would be among those that are no locks.
    pub(super) fn check(&self, name: &Name) -> Result<()> {
        if name.as_str().starts_with(RESERVED) {
            let message = format!("names that begin with {RESERVED:?} are the store's own");
            return Err(Error::invalid(message));
        }
        Ok(())
    }

    /// The key of a claim on this lock under this lease.
    pub(super) fn lock(&self, name: &Name, lease: i64) -> String {
        format!("{}{name}/{lease:x}", self.root)
    }

    /// Where the keys of a lock are, and some that are not its own (nested names):
    /// [`Layout::is_claim`] tells them apart.
    pub(super) fn queue(&self, name: &Name) -> Range<String> {
        digits_below(&format!("{}{name}", self.root))
    }

    /// Whether this key is a claim on this lock: its rest is exactly the id of the lease
    /// it hangs on. (The lock `jobs` must not see `jobs/42/…`; Go's mutex does.)
    pub(super) fn is_claim(&self, name: &Name, key: &[u8], lease: i64) -> bool {
        lease != 0 && key == self.lock(name, lease).as_bytes()
    }

    /// The lock that this key is a claim on.
    pub(super) fn lock_of(&self, key: &[u8], lease: i64) -> Option<Name> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.root)?;
        let (name, id) = rest.rsplit_once('/')?;
        let is_lock = lease != 0 && id == format!("{lease:x}") && !name.starts_with(RESERVED);
        is_lock.then(|| Name::new(name).ok()).flatten()
    }

    /// Where all keys of locks are whose names begin so.
    pub(super) fn names(&self, prefix: &str) -> String {
        format!("{}{prefix}", self.root)
    }

    /// The key that lives as long as this lease does.
    pub(super) fn session(&self, lease: i64) -> String {
        format!("{}{RESERVED}session/{lease:x}/alive", self.root)
    }

    /// The record of a force-release: of this lock, of the lease with this token.
    pub(super) fn forced(&self, name: &Name, token: Token) -> String {
        format!("{}{RESERVED}forced/{name}/{:016x}", self.root, token.get())
    }

    /// Where the records of a lock are, among others: [`Layout::forced_of`] tells.
    pub(super) fn records(&self, name: &Name) -> Range<String> {
        digits_below(&format!("{}{RESERVED}forced/{name}", self.root))
    }

    /// Where all records are.
    pub(super) fn all_forced(&self) -> String {
        format!("{}{RESERVED}forced/", self.root)
    }

    /// Of which lease of which lock this is the record.
    pub(super) fn forced_of(&self, key: &[u8]) -> Option<(Name, Token)> {
        let rest = std::str::from_utf8(key).ok()?.strip_prefix(&self.all_forced())?;
        let (name, token) = rest.rsplit_once('/')?;
        let token = (token.len() == 16).then(|| u64::from_str_radix(token, 16).ok()).flatten()?;
        Some((Name::new(name).ok()?, Token::new(token)))
    }

    /// A key to ask for when any answer will do.
    pub(super) fn probe(&self) -> String {
        format!("{}{RESERVED}probe", self.root)
    }
}

/// The keys that go on with `/` and a lower-case hexadecimal digit.
fn digits_below(stem: &str) -> Range<String> {
    format!("{stem}/0")..format!("{stem}/g")
}

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
    HeldBy::new(holder(), wall_time(&json, "since"))
}

/// The value of a force-release's record.
pub(super) fn of_forced(forced: &Forced, at: SystemTime) -> String {
    json!({ "by": forced.by, "reason": forced.reason, "at": time::since_epoch(at) }).to_string()
}

/// A record, read back.
pub(super) fn forced(value: &[u8], token: Token) -> Option<ForcedInfo> {
    let json = parse(value)?;
    let text = |key: &str| json.get(key)?.as_str();
    let forced = Forced::new(text("by")?, text("reason")?);
    Some(ForcedInfo::new(forced, wall_time(&json, "at")?, token))
}

fn parse(value: &[u8]) -> Option<Json> {
    serde_json::from_slice(value).ok()
}

fn wall_time(json: &Json, key: &str) -> Option<SystemTime> {
    i64::try_from(json.get(key)?.as_u64()?).ok().map(time::at)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    /// Golden: `etcdctl lock` and Go's mutex make these keys.
    #[test]
    fn keys_are_those_of_etcdctl() {
        let lease = 0x694d_8f2a_31c0_9a07;
        assert_eq!(Layout::below("").lock(&name("jobs"), lease), "jobs/694d8f2a31c09a07");
        let prefixed = Layout::below("app/locks").lock(&name("jobs/42"), lease);
        assert_eq!(prefixed, "app/locks/jobs/42/694d8f2a31c09a07");
    }

    #[test]
    fn nested_names_are_told_apart() {
        let (layout, lease) = (Layout::below("app"), 0x1f);
        let (jobs, nested) = (name("jobs"), name("jobs/42"));
        let key = layout.lock(&nested, lease).into_bytes();
        assert!(layout.queue(&jobs).contains(&String::from_utf8(key.clone()).unwrap()));
        assert!(!layout.is_claim(&jobs, &key, lease) && layout.is_claim(&nested, &key, lease));
        assert_eq!(layout.lock_of(&key, lease), Some(nested));
        assert_eq!(layout.lock_of(b"app/jobs/1f", 0x2f), None, "another lease's");
        assert_eq!(layout.lock_of(b"app/jobs/1F", 0x1f), None, "not as etcd writes it");
        assert_eq!(layout.lock_of(b"app/jobs/1f", 0), None, "no lease");
    }

    #[test]
    fn what_is_no_lock_is_not_taken_for_one() {
        let layout = Layout::below("");
        assert_eq!(layout.lock_of(layout.session(31).as_bytes(), 31), None);
        let record = layout.forced(&name("a/b"), Token::new(7));
        assert_eq!(layout.forced_of(record.as_bytes()), Some((name("a/b"), Token::new(7))));
        assert!(layout.check(&name(".leasehold/forced/x")).is_err());
        assert!(layout.check(&name("leasehold")).is_ok());
    }

    #[test]
    fn a_value_is_read_back() {
        let mut holder = Holder::new("host \"q\"", 7, "größe");
        holder.process_group = Some(9);
        let claim = Claim::new(name("n"), Duration::from_secs(1), Arc::new(holder.clone()));
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
