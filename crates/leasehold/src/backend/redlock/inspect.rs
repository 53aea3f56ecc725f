//! Looking at locks: a lease is what a majority of the nodes knows of.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use redis::Value;

use super::super::redis::admin::names_at;
use super::super::redis::error::unexpected;
use super::super::redis::keys::Companion::{Forced as ForcedKey, Line, Record};
use super::super::redis::script::Call;
use super::super::redis::script::{bytes, left, micros, number, text};
use super::RedlockStore;
use super::script::INSPECT;
use super::tally::Known;
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::holder::HeldBy;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How many locks are looked at in one call.
const AT_ONCE: usize = 100;

impl RedlockStore {
    pub(super) async fn look(self: &Arc<Self>, names: &[Name]) -> Result<Vec<LockInfo>> {
        let call = || {
            let mut call = Call::new(&INSPECT, 0, 1 + 4 * names.len());
            call.arg(&self.marker);
            for name in names {
                call.keys(&self.keys(name), &[Record, Line, ForcedKey]);
            }
            call.arg(self.expected());
            call
        };
        // All that answer are heard: nobody waits for this.
        let answers =
            self.consult(call, names.len(), self.settings.timeout, |_, pending| pending == 0);
        let answers = answers.await;
        if answers.given.len() < self.majority {
            return Err(answers.no_majority(&self.nodes));
        }
        let looks = names.iter().enumerate().map(|(item, name)| {
            let seen = answers.given.iter().filter_map(|answers| answers.get(item)).map(Seen::read);
            Ok(self.sum_up(name.clone(), seen.collect::<Result<Vec<_>>>()?))
        });
        looks.collect()
    }

    fn sum_up(&self, name: Name, seen: Vec<Seen>) -> LockInfo {
        let mut info = LockInfo::free(name);
        let mut holders: HashMap<&[u8], Vec<&Seen>> = HashMap::new();
        for one in &seen {
            if let Some(value) = &one.value {
                holders.entry(value).or_default().push(one);
            }
        }
        let holder = holders.into_iter().find(|(_, seen)| seen.len() >= self.majority);
        if let Some((value, at)) = holder {
            let mut remaining: Vec<_> = at.iter().filter_map(|seen| seen.left).collect();
            remaining.sort_unstable_by(|one, other| other.cmp(one));
            let remaining = remaining.get(self.majority - 1).copied();
            let known = at.iter().filter_map(|seen| Known::read(&seen.record, value)).next();
            info.lease = Some(match known {
                Some(Known { owner, token, held_by }) => {
                    LeaseInfo::new(Some(owner), Some(token), held_by, remaining)
                }
                None => LeaseInfo::new(None, None, HeldBy::new(None, None), remaining),
            });
        }
        let mut waiters: Vec<_> = seen.iter().map(|seen| seen.waiters).collect();
        waiters.sort_unstable();
        info.waiters = waiters.get((waiters.len().max(1) - 1) / 2).copied().unwrap_or(0);
        let forced = seen.into_iter().filter_map(|seen| seen.forced);
        info.forced = forced.max_by_key(|forced| (forced.token, forced.at));
        info
    }

    /// Every lock that is held or waited for.
    pub(super) async fn look_at_all(self: &Arc<Self>, prefix: &str) -> Result<Vec<LockInfo>> {
        let mut names = BTreeSet::new();
        let mut heard = 0;
        let mut failure = None;
        let scans =
            self.nodes.iter().map(|node| names_at(&node.server, &self.settings.prefix, prefix));
        for scanned in futures_util::future::join_all(scans).await {
            match scanned {
                Ok(some) => {
                    heard += 1;
                    names.extend(some);
                }
                Err(error) => failure = Some(error),
            }
        }
        if let (Some(error), true) = (failure, heard < self.majority) {
            return Err(error);
        }
        let names: Vec<_> = names.into_iter().collect();
        let mut infos = Vec::with_capacity(names.len());
        for some in names.chunks(AT_ONCE) {
            infos.extend(self.look(some).await?);
        }
        infos.retain(|info| info.lease.is_some() || info.waiters > 0);
        Ok(infos)
    }
}

/// A lock as one node sees it.
struct Seen {
    value: Option<Vec<u8>>,
    left: Option<std::time::Duration>,
    record: Value,
    waiters: usize,
    forced: Option<ForcedInfo>,
}

impl Seen {
    fn read(answer: &Value) -> Result<Self> {
        let Value::Array(parts) = answer else { return Err(unexpected()) };
        let [exists, holds, left_for, record, waiters, token, at, by, reason] = &parts[..] else {
            return Err(unexpected());
        };
        let value = if number(exists)? == 1 { Some(bytes(holds)?.to_vec()) } else { None };
        let mut forced = None;
        if let (Ok(token), Some(at)) = (text(token)?.parse(), micros(text(at)?)) {
            let who = Forced::new(text(by)?, text(reason)?);
            forced = Some(ForcedInfo::new(who, at, Token::new(token)));
        }
        Ok(Self {
            value,
            left: left(number(left_for)?),
            record: record.clone(),
            waiters: usize::try_from(number(waiters)?).map_err(|_| unexpected())?,
            forced,
        })
    }
}
