//! What people ask and do about locks: look at them, take them away, examine the cluster.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use etcd_client::{
    AlarmAction, AlarmMember, AlarmType, GetOptions, KeyValue, PutOptions, StatusResponse, Txn,
    TxnOp,
};
use futures_util::StreamExt;
use futures_util::future::join_all;

use super::error::{explain, is_compacted, is_lease_gone};
use super::queue::{by_age, is_that_of, revision};
use super::{EtcdStore, keys};
use crate::backend::{Finding, LeaseInfo, LockInfo};
use crate::error::{Error, ErrorKind, Result};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How many keys are read at a time.
const PAGE: i64 = 1_000;
/// How many leases are asked about at once.
const AT_ONCE: usize = 16;
/// How long the record of a force-release is kept: it hangs on a lease of its own.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// How often a lock is looked at again because its holder changed meanwhile.
const ATTEMPTS: usize = 5;
/// etcd's own default, where a member does not say what its quota is.
const DEFAULT_QUOTA: i64 = 2 << 30;
/// How long a member may take to tell its status.
const LIMIT: Duration = Duration::from_secs(1);
/// A majority that takes longer to agree makes every lock slow.
const SLOW: Duration = Duration::from_millis(100);

pub(super) async fn inspect(store: Arc<EtcdStore>, name: Name) -> Result<Option<LockInfo>> {
    let (queue, records) = (store.layout.queue(&name), store.layout.records(&name));
    let looks = [
        TxnOp::get(queue.start, Some(by_age(queue.end))),
        TxnOp::get(records.start, Some(GetOptions::new().with_range(records.end))),
    ];
    let ([mut queue, records], _) = store.look(looks).await?;
    let claims = store.claims_among(&name, queue.take_kvs());
    let record = |kv: &KeyValue| {
        let (lock, token) = store.layout.forced_of(kv.key())?;
        (lock == name).then(|| keys::forced(kv.value(), token)).flatten()
    };
    let forced = records.kvs().iter().filter_map(record).max_by_key(|record| record.token);
    if claims.is_empty() && forced.is_none() {
        return Ok(None);
    }
    let leases = claims.first().map(KeyValue::lease).into_iter().collect();
    let remaining = remaining(&store, leases).await?;
    Ok(Some(LockInfo { forced, ..described(name, &claims, &remaining) }))
}

pub(super) async fn list(store: Arc<EtcdStore>, prefix: String) -> Result<Vec<LockInfo>> {
    let claims = match all_claims(&store, &prefix).await {
        // Compacted between two pages: from the beginning.
        Err(error) if is_compacted(&error) => all_claims(&store, &prefix).await?,
        claims => claims?,
    };
    let mut locks: BTreeMap<Name, Vec<KeyValue>> = BTreeMap::new();
    for (name, kv) in claims {
        locks.entry(name).or_default().push(kv);
    }
    for claims in locks.values_mut() {
        claims.sort_unstable_by_key(KeyValue::create_revision);
    }
    let leases = locks.values().filter_map(|claims| claims.first().map(KeyValue::lease));
    let remaining = remaining(&store, leases.collect()).await?;
    let infos = locks.into_iter().map(|(name, claims)| described(name, &claims, &remaining));
    Ok(infos.collect())
}

/// Every claim on locks whose names begin so: in pages, all as of one revision.
async fn all_claims(store: &EtcdStore, prefix: &str) -> Result<Vec<(Name, KeyValue)>> {
    let start = store.layout.names(prefix).into_bytes();
    let end = successor(&start);
    let (mut next, mut as_of, mut claims) = (start, 0, Vec::new());
    if next.is_empty() {
        next.push(0);
    }
    loop {
        let options =
            GetOptions::new().with_range(end.clone()).with_limit(PAGE).with_revision(as_of);
        let mut page = store.endpoints.get(next.clone(), options).await?;
        if as_of == 0 {
            as_of = revision(page.header());
        }
        let (keys, more) = (page.take_kvs(), page.more());
        if let Some(last) = keys.last() {
            next = [last.key(), &[0]].concat();
        }
        for kv in keys {
            if let Some(name) = store.layout.lock_of(kv.key(), kv.lease())
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
async fn remaining(store: &EtcdStore, leases: BTreeSet<i64>) -> Result<HashMap<i64, Duration>> {
    let asking = futures_util::stream::iter(leases).map(async |lease| {
        let asking =
            store.endpoints.call(async |mut etcd| etcd.lease_time_to_live(lease, None).await);
        match asking.await {
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

/// A lock with these claims on it, first come first.
fn described(name: Name, claims: &[KeyValue], remaining: &HashMap<i64, Duration>) -> LockInfo {
    let lease = claims.first().map(|first| {
        LeaseInfo::new(
            keys::owner(first.value()),
            Some(Token::new(first.create_revision() as u64)),
            keys::held_by(first.value()),
            remaining.get(&first.lease()).copied(),
        )
    });
    LockInfo { waiters: claims.len().saturating_sub(1), ..LockInfo::free(name).held(lease) }
}

/// The first key after all that begin with this; etcd's mark for "to the end" if none is.
fn successor(prefix: &[u8]) -> Vec<u8> {
    let kept = prefix.iter().rposition(|byte| *byte < 0xff);
    match kept {
        Some(last) => [&prefix[..last], &[prefix[last] + 1]].concat(),
        None => vec![0],
    }
}

/// The holder's key goes and a record comes, in one transaction.
pub(super) async fn force_release(
    store: Arc<EtcdStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    store.layout.check(&name)?;
    for _ in 0..ATTEMPTS {
        let (claims, _) = store.claims(&name).await?;
        let Some(first) = claims.first() else { return Ok(None) };
        let token = Token::new(first.create_revision() as u64);
        let kept = KEPT.as_secs() as i64;
        let granting = store.endpoints.call(async |mut etcd| etcd.lease_grant(kept, None).await);
        let lease = granting.await?.id();
        let record = TxnOp::put(
            store.layout.forced(&name, token),
            keys::of_forced(&forced, store.clock.wall()),
            Some(PutOptions::new().with_lease(lease)),
        );
        let txn = Txn::new()
            .when([is_that_of(first.key(), first.create_revision())])
            .and_then([TxnOp::delete(first.key(), None), record]);
        if store.endpoints.txn(txn).await?.succeeded() {
            return Ok(Some(token));
        }
    }
    let message = "the lock changes hands too fast to be taken away; try again";
    Err(Error::new(ErrorKind::Unavailable, message).not_applied())
}

/// What `doctor` shows of the cluster.
pub(super) async fn examine(store: Arc<EtcdStore>) -> Result<Vec<Finding>> {
    let listing = store.endpoints.call(async |mut etcd| etcd.member_list().await).await?;
    let voters = listing.members().iter().filter(|member| !member.is_learner()).count();
    let mut findings = vec![of_voters(voters)];
    let named = store.endpoints.urls().len();
    if named < voters {
        findings.push(Finding::warning(
            format!("the store's URL names {named} of {voters} members"),
            "name all of them, so that the loss of one does not cut this client off",
        ));
    }
    let members = store.endpoints.urls().enumerate();
    let asked = members.map(async |(index, url)| (url, status(&store, index).await));
    let mut versions = BTreeSet::new();
    for (url, status) in join_all(asked).await {
        match status {
            Ok(status) => {
                findings.push(of_member(url, &status));
                versions.insert(status.version().to_owned());
            }
            Err(error) => findings.push(Finding::warning(
                format!("{url} does not answer: {error}"),
                "the cluster bears the loss of fewer than half of its members: repair it",
            )),
        }
    }
    findings.extend(versions.iter().map(|version| of_version(version)));
    let asking = store
        .endpoints
        .call(async |mut etcd| etcd.alarm(AlarmAction::Get, AlarmType::None, None).await);
    findings.extend(asking.await?.alarms().iter().map(of_alarm));
    findings.push(latency(&store).await?);
    Ok(findings)
}

async fn status(store: &EtcdStore, member: usize) -> Result<StatusResponse> {
    let asking = async { store.endpoints.client_of(member).await?.status().await };
    match tokio::time::timeout(LIMIT, asking).await {
        Ok(status) => status.map_err(explain),
        Err(_) => Err(Error::no_answer(LIMIT)),
    }
}

/// How long the majority takes to agree on a read.
async fn latency(store: &EtcdStore) -> Result<Finding> {
    let mut took = Vec::new();
    for _ in 0..3 {
        let began = Instant::now();
        store.endpoints.get(store.layout.probe(), GetOptions::new()).await?;
        took.push(began.elapsed());
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    let what = format!("the leader answers within {:.1} ms", median.as_secs_f64() * 1e3);
    Ok(match median < SLOW {
        true => Finding::fine(what),
        false => Finding::warning(what, "look at the disks' fsync and the network between members"),
    })
}

fn of_voters(voters: usize) -> Finding {
    let what = format!("{voters} voting {}", if voters == 1 { "member" } else { "members" });
    match voters {
        1 => Finding::warning(what, "its loss stops every lock: run three"),
        even if even % 2 == 0 => {
            Finding::warning(what, "an even number bears no more losses than one fewer does")
        }
        _ => Finding::fine(what),
    }
}

fn of_alarm(alarm: &AlarmMember) -> Finding {
    let member = alarm.member_id();
    match alarm.alarm() {
        AlarmType::Nospace => Finding::warning(
            format!("alarm NOSPACE on member {member:x}"),
            "no lock can be taken: compact, defragment, then `etcdctl alarm disarm`",
        ),
        AlarmType::Corrupt => Finding::danger(
            format!("alarm CORRUPT on member {member:x}"),
            "its data differs from the others': replace the member",
        ),
        AlarmType::None => Finding::warning("an alarm of an unknown kind", "look at it"),
    }
}

fn of_member(url: &str, status: &StatusResponse) -> Finding {
    if status.leader() == 0 {
        let advice = "it is cut off from the majority, which its clients cannot reach through it";
        return Finding::warning(format!("{url} has no leader"), advice);
    }
    let quota = Some(status.db_size_quota()).filter(|quota| *quota > 0).unwrap_or(DEFAULT_QUOTA);
    let (size, quota_mb) = (status.db_size() >> 20, quota >> 20);
    let what = format!("{url}: {size} MiB of {quota_mb} MiB used");
    // Four fifths, without overflow.
    if status.db_size() / 4 > quota / 5 {
        let advice = "beyond its quota no lock can be taken: turn on automatic compaction and \
                      defragment it";
        return Finding::warning(what, advice);
    }
    Finding::fine(what)
}

/// Versions with bugs that can cost a lock or a token.
fn of_version(version: &str) -> Finding {
    let what = format!("etcd {version}");
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let version: (u32, u32, u32) = (next(), next(), next());
    let bug = match version {
        (..=2, ..) | (3, ..=3, _) => "too old: its watches cannot be told apart",
        (3, 4, ..=21) | (3, 5, ..=5) => {
            "can lose or fork what it acknowledged (etcd#13766, #14370, #14685): take 3.4.32, \
             3.5.14 or later"
        }
        (3, 4, ..=31) | (3, 5, ..=13) => {
            "a leader that was paused ends sessions that are alive (etcd#15247), and a crash while \
             compacting can take the revision back (etcd#17865): take 3.4.32, 3.5.14 or later"
        }
        _ => return Finding::fine(what),
    };
    Finding::danger(what, bug)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Severity;

    #[test]
    fn versions_with_known_bugs_are_found() {
        for version in
            ["2.3.8", "3.3.27", "3.4.0", "3.4.21", "3.4.31", "3.5.0", "3.5.13", "3.5.2-rc.1"]
        {
            assert_eq!(of_version(version).severity, Severity::Unsafe, "{version}");
        }
        for version in ["3.4.32", "3.4.37", "3.5.14", "3.5.21", "3.6.0", "4.0.0"] {
            assert_eq!(of_version(version).severity, Severity::Fine, "{version}");
        }
    }

    #[test]
    fn members_are_counted() {
        let severities = [1, 2, 3, 4, 5].map(|voters| of_voters(voters).severity);
        use Severity::{Fine, Warning};
        assert_eq!(severities, [Warning, Warning, Fine, Warning, Fine]);
    }

    #[test]
    fn the_successor_ends_a_prefix() {
        assert_eq!(successor(b"a/"), b"a0");
        assert_eq!(successor(&[b'a', 0xff]), b"b");
        assert_eq!(successor(b""), [0]);
    }
}
