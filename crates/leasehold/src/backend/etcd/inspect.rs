//! Looking at locks.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use etcd_client::{GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse};
use futures_util::StreamExt;

use super::error::broken_reply;
use super::error::{is_compacted, is_lease_gone};
use super::{EtcdStore, value};
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::name::Name;
use crate::token::Token;

/// How many keys are read at a time.
const PAGE: i64 = 1_000;
/// How many leases are asked about at once.
const AT_ONCE: usize = 16;

impl EtcdStore {
    pub(super) async fn look_at(&self, name: &Name) -> Result<Option<LockInfo>> {
        let (line, records) = (self.layout.line(name), self.layout.forced_line(name));
        let by_age =
            GetOptions::new().with_range(line.end).with_sort(SortTarget::Create, SortOrder::Ascend);
        let looks = [
            TxnOp::get(line.start, Some(by_age)),
            TxnOp::get(records.start, Some(GetOptions::new().with_range(records.end))),
        ];
        let txn = Txn::new().and_then(looks);
        let response = self.endpoints.txn(txn).await?;
        let mut looks = response.op_responses().into_iter();
        let (Some(TxnOpResponse::Get(mut line)), Some(TxnOpResponse::Get(records))) =
            (looks.next(), looks.next())
        else {
            return Err(broken_reply());
        };
        let claims = self.claims_among(name, line.take_kvs());
        let forced = self.latest_record(name, records.kvs());
        if claims.is_empty() && forced.is_none() {
            return Ok(None);
        }
        let leases: Vec<i64> = claims.first().map(KeyValue::lease).into_iter().collect();
        let remaining = self.remaining(leases).await?;
        let mut info = described(name.clone(), &claims, &remaining);
        info.forced = forced;
        Ok(Some(info))
    }

    fn latest_record(&self, name: &Name, records: &[KeyValue]) -> Option<ForcedInfo> {
        let read = |kv: &KeyValue| {
            let (lock, token) = self.layout.forced_of(kv.key())?;
            (lock == *name).then(|| value::forced(kv.value(), token)).flatten()
        };
        records.iter().filter_map(read).max_by_key(|record| record.token)
    }

    pub(super) async fn look_at_all(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let claims = match self.all_claims(prefix).await {
            // Compacted between two pages: from the beginning.
            Err(error) if is_compacted(&error) => self.all_claims(prefix).await?,
            claims => claims?,
        };
        let mut locks: BTreeMap<Name, Vec<KeyValue>> = BTreeMap::new();
        for (name, kv) in claims {
            locks.entry(name).or_default().push(kv);
        }
        for line in locks.values_mut() {
            line.sort_unstable_by_key(KeyValue::create_revision);
        }
        let mut leases: Vec<i64> =
            locks.values().filter_map(|line| line.first().map(KeyValue::lease)).collect();
        leases.sort_unstable();
        leases.dedup();
        let remaining = self.remaining(leases).await?;
        let infos = locks.into_iter().map(|(name, line)| described(name, &line, &remaining));
        Ok(infos.collect())
    }

    /// Every claim on locks whose names begin so: in pages, all as of one revision.
    async fn all_claims(&self, prefix: &str) -> Result<Vec<(Name, KeyValue)>> {
        let start = self.layout.names(prefix).into_bytes();
        let end = successor(&start);
        let (mut next, mut revision, mut claims) = (start, 0, Vec::new());
        if next.is_empty() {
            next.push(0);
        }
        loop {
            let from = next.clone();
            let options =
                GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(revision);
            let reading = self.endpoints.on_keys(async |mut kv| kv.get(from, Some(options)).await);
            let mut page = reading.await?;
            if revision == 0 {
                revision = page.header().map_or(0, |header| header.revision());
            }
            let (keys, more) = (page.take_kvs(), page.more());
            if let Some(last) = keys.last() {
                next = [last.key(), &[0]].concat();
            }
            for kv in keys {
                if let Some(name) = self.layout.lock_of(kv.key(), kv.lease())
                    && name.as_str().starts_with(prefix)
                {
                    claims.push((name, kv));
                }
            }
            if !more {
                return Ok(claims);
            }
        }
    }

    /// How long each of these leases lasts if it is not renewed; none for one that has
    /// ended meanwhile.
    async fn remaining(&self, leases: Vec<i64>) -> Result<HashMap<i64, Duration>> {
        let asking = futures_util::stream::iter(leases).map(async |lease| {
            let asked = self
                .endpoints
                .call(async |mut etcd| etcd.lease_time_to_live(lease, None).await)
                .await;
            match asked {
                Ok(answer) => Ok(u64::try_from(answer.ttl()).ok().map(|ttl| (lease, ttl))),
                Err(error) if is_lease_gone(&error) => Ok(None),
                Err(error) => Err(error),
            }
        });
        let answers: Vec<Result<_>> = asking.buffer_unordered(AT_ONCE).collect().await;
        let mut remaining = HashMap::new();
        for answer in answers {
            remaining.extend(answer?.map(|(lease, ttl)| (lease, Duration::from_secs(ttl))));
        }
        Ok(remaining)
    }
}

/// A lock with these claims on it, first come first.
fn described(name: Name, line: &[KeyValue], remaining: &HashMap<i64, Duration>) -> LockInfo {
    let mut info = LockInfo::free(name);
    info.waiters = line.len().saturating_sub(1);
    info.lease = line.first().map(|first| {
        LeaseInfo::new(
            value::owner(first.value()),
            Some(Token::new(first.create_revision() as u64)),
            value::held_by(first.value()),
            remaining.get(&first.lease()).copied(),
        )
    });
    info
}

/// The first key after all that begin with this; etcd's mark for "to the end" if none is.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < 0xff);
    match kept {
        Some(last) => [&prefix[..last], &[prefix[last] + 1]].concat(),
        None => vec![0],
    }
}

#[cfg(test)]
mod tests {
    use super::successor;

    #[test]
    fn the_successor_ends_a_prefix() {
        assert_eq!(successor(b"a/"), b"a0");
        assert_eq!(successor(&[b'a', 0xff]), b"b");
        assert_eq!(successor(b""), [0]);
    }
}
