//! Looking at locks.

use std::collections::BTreeSet;

use redis::Value;

use super::RedisStore;
use super::answer::{Record, bytes, items, left, micros, number, text};
use super::batch::{Located, by_slot};
use super::error::unexpected;
use super::keys::Companion::{Forced as ForcedKey, Queue, Record as RecordKey};
use super::keys::lock_key_of;
use super::script::{Call, INSPECT};
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::holder::HeldBy;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How many keys a server is asked to look at in one step of a scan.
const STEP: usize = 1000;
/// How many locks are looked at in one call.
const AT_ONCE: usize = 100;

impl RedisStore {
    pub(in crate::backend) async fn look(&self, names: Vec<Name>) -> Result<Vec<LockInfo>> {
        let names = self.locate(names, |name| name);
        by_slot(names, self.route.slots_matter(), |some| self.look_in_slot(some)).await
    }

    async fn look_in_slot(&self, names: Vec<Located<Name>>) -> Result<Vec<LockInfo>> {
        let slot = names.first().map_or(0, |(keys, _)| keys.slot);
        let mut call = Call::new(&INSPECT, slot, 4 * names.len());
        for (keys, _) in &names {
            call.keys(keys, &[RecordKey, Queue, ForcedKey]);
        }
        let answers = items(self.route.call(&call).await?, names.len())?;
        names.into_iter().zip(&answers).map(|((_, name), answer)| info(name, answer)).collect()
    }

    /// Every lock that is held or waited for, of all servers.
    pub(in crate::backend) async fn look_at_all(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let names: Vec<_> = self.names(prefix).await?.into_iter().collect();
        let mut infos = Vec::with_capacity(names.len());
        for some in names.chunks(AT_ONCE) {
            infos.extend(self.look(some.to_vec()).await?);
        }
        infos.retain(|info| info.lease.is_some() || info.waiters > 0);
        Ok(infos)
    }

    /// SCAN, never KEYS: nobody has to wait for it. A line counts as its lock, which may be
    /// free for a moment.
    async fn names(&self, prefix: &str) -> Result<BTreeSet<Name>> {
        let wanted = format!("{}{prefix}", self.settings.prefix);
        let pattern = format!("*{}*", escaped(&wanted));
        let mut names = BTreeSet::new();
        for server in self.route.masters().await? {
            let mut cursor = "0".to_owned();
            loop {
                let mut scan = redis::cmd("SCAN");
                scan.arg(&cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(STEP);
                let answer = server.ask_in_time(&scan).await?;
                let [next, Value::Array(keys)] = &items(answer, 2)?[..] else {
                    return Err(unexpected());
                };
                for key in keys {
                    // What is no text is no name of ours.
                    let Ok(key) = text(key) else { continue };
                    let key = lock_key_of(key).filter(|key| key.starts_with(&wanted));
                    let name = key.and_then(|key| key.strip_prefix(&self.settings.prefix));
                    names.extend(name.and_then(|name| Name::new(name).ok()));
                }
                cursor = text(next)?.to_owned();
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(names)
    }
}

/// A literal in a glob.
pub(in crate::backend) fn escaped(literal: &str) -> String {
    let mut pattern = String::with_capacity(literal.len());
    for character in literal.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^' | '-') {
            pattern.push('\\');
        }
        pattern.push(character);
    }
    pattern
}

fn info(name: Name, answer: &Value) -> Result<LockInfo> {
    let Value::Array(parts) = answer else { return Err(unexpected()) };
    let [exists, holds, left_for, record, waiters, token, at, by, reason] = &parts[..] else {
        return Err(unexpected());
    };
    let mut info = LockInfo::free(name);
    if number(exists)? == 1 {
        let remaining = left(number(left_for)?);
        let mut lease = match Record::of(record, bytes(holds)?) {
            Some(Record { owner, token, held_by }) => {
                LeaseInfo::new(Some(owner), Some(token), held_by, remaining)
            }
            None => LeaseInfo::new(None, None, HeldBy::new(None, None), remaining),
        };
        // A key that is there, and has nothing left of its time, was given none.
        lease.held_by.never_expires = remaining.is_none();
        info.lease = Some(lease);
    }
    info.waiters = usize::try_from(number(waiters)?).map_err(|_| unexpected())?;
    if let (Ok(token), Some(at)) = (text(token)?.parse(), micros(text(at)?)) {
        let forced = Forced::new(text(by)?, text(reason)?);
        info.forced = Some(ForcedInfo::new(forced, at, Token::new(token)));
    }
    Ok(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_is_no_pattern() {
        assert_eq!(escaped("lock:a*b?[x-y]\\^"), "lock:a\\*b\\?\\[x\\-y\\]\\\\\\^");
    }
}
