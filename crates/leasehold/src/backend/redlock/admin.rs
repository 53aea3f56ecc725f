//! What operators ask for: looking at locks, taking them away, and what about the nodes is
//! unsafe. A lease is what a majority of the nodes knows of.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use super::Companion::{Forced as ForcedKey, Record as RecordKey, RedlockQueue};
use super::ledger::owner_of;
use super::node::NodeStatus;
use super::recovery::Probe;
use super::script::{FORCE, INSPECT};
use super::votes::{lower_median, natural};
use super::{Info, REMEMBERED, Record, RedlockStore, Seen, lease, millis, names_at, of_server};
use crate::backend::{Finding, LockInfo};
use crate::error::{Error, Result};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;
use futures_util::future::join_all;

/// How many locks are looked at in one call.
const AT_ONCE: usize = 100;
/// A difference between clocks that deserves a word, in µs.
const NOTABLE_OFFSET: u64 = 1_000_000;
/// One beyond which nodes refuse guesses.
const FURTHEST: u64 = 3_600_000_000;

pub(super) async fn inspect(store: Arc<RedlockStore>, name: Name) -> Result<Option<LockInfo>> {
    let info = look(&store, &[name]).await?.pop();
    Ok(info.filter(|info| info.lease().is_some() || info.waiters > 0 || info.forced.is_some()))
}

/// Every lock that is held or waited for.
pub(super) async fn list(store: Arc<RedlockStore>, prefix: String) -> Result<Vec<LockInfo>> {
    let scans = join_all(
        store.nodes.iter().map(|node| names_at(&node.server, &store.settings.prefix, &prefix)),
    )
    .await;
    let heard = scans.iter().filter(|scanned| scanned.is_ok()).count();
    let mut names = BTreeSet::new();
    for scanned in scans {
        match scanned {
            Ok(some) => names.extend(some),
            Err(error) if heard < store.majority => return Err(error),
            Err(_) => {}
        }
    }
    let names: Vec<_> = names.into_iter().collect();
    let mut infos = Vec::with_capacity(names.len());
    for some in names.chunks(AT_ONCE) {
        infos.extend(look(&store, some).await?);
    }
    infos.retain(|info| info.lease().is_some() || info.waiters > 0);
    Ok(infos)
}

async fn look(store: &RedlockStore, names: &[Name]) -> Result<Vec<LockInfo>> {
    let call = || {
        let mut call = store.call(&INSPECT, 4 * names.len());
        for name in names {
            call.keys(&store.keys(name), &[RecordKey, RedlockQueue, ForcedKey]);
        }
        call.arg(store.expected());
        call
    };
    // All that answer are heard: nobody waits for this.
    let items = names.len()..=names.len();
    let answers = store.consult(call, items, store.settings.timeout, |_| false).await;
    if answers.given.len() < store.majority {
        return Err(answers.no_majority());
    }
    let looks = names.iter().enumerate().map(|(item, name)| {
        let seen = answers.given.iter().filter_map(|answers| answers.get(item)).map(Seen::read);
        Ok(sum_up(name.clone(), seen.collect::<Result<_>>()?, store.majority))
    });
    looks.collect()
}

fn sum_up(name: Name, seen: Vec<Seen>, majority: usize) -> LockInfo {
    let mut info = LockInfo::free(name);
    let mut holders: HashMap<&[u8], Vec<&Seen>> = HashMap::new();
    for one in &seen {
        if let Some(value) = &one.value {
            holders.entry(value).or_default().push(one);
        }
    }
    if let Some((value, at)) = holders.into_iter().find(|(_, seen)| seen.len() >= majority) {
        let mut remaining: Vec<_> = at.iter().filter_map(|seen| seen.remaining).collect();
        remaining.sort_unstable_by(|one, other| other.cmp(one));
        let remaining = remaining.get(majority - 1).copied();
        let known = at.iter().filter_map(|seen| Record::of(&seen.record, value, owner_of)).next();
        info.leases.push(lease(known, remaining));
    }
    let mut waiters: Vec<_> = seen.iter().map(|seen| seen.waiters).collect();
    info.waiters = lower_median(&mut waiters).unwrap_or(0);
    let forced = seen.into_iter().filter_map(|seen| seen.forced);
    info.forced = forced.max_by_key(|forced| (forced.token, forced.at));
    info
}

pub(super) async fn force_release(
    store: Arc<RedlockStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    let keys = store.keys(&name);
    let call = || {
        let mut call = store.call(&FORCE, 4);
        call.keys(&keys, &[RecordKey, RedlockQueue, ForcedKey]);
        call.arg(store.expected()).arg(&forced.by).arg(&forced.reason).arg(millis(REMEMBERED));
        call
    };
    let answers = store.consult(call, 0..=1, store.settings.timeout, |_| false).await;
    if answers.given.len() < store.majority {
        return Err(answers.no_majority());
    }
    let held = answers.given.iter().filter(|given| given.len() == 1).count();
    let silent = store.nodes.len() - answers.given.len();
    // What only a few nodes knew of was no lease: it is gone, and nobody lost it.
    let was_held = held + silent >= store.majority || !answers.earlier.is_empty();
    let ended = answers.earlier.iter().chain(&answers.given).filter_map(|given| given.first());
    let ended = ended.map(natural).collect::<Result<Vec<_>>>()?.into_iter().max();
    Ok(ended.filter(|_| was_held).map(Token::new))
}

/// What about the nodes is unsafe.
pub(super) async fn examine(store: Arc<RedlockStore>) -> Result<Vec<Finding>> {
    let probe = store.look().await;
    let mut findings = vec![number_of_nodes(&store), voters(&store, &probe)];
    let clock = probe.clock().unwrap_or(0);
    for (node, report) in &probe.said {
        let name = node.name();
        let report = match report {
            Ok(report) => report,
            Err(failure) => {
                findings.push(Finding::danger(
                    format!("{name}: not reached: {}", Error::from(failure.clone())),
                    "one more that fails may be one too many: start it, or repair the network to it",
                ));
                continue;
            }
        };
        findings.push(status(&store, &name, &report.status, probe.epoch()));
        findings.push(offset(&name, report.clock, clock));
        let info = Info::ask(&node.server).await?;
        findings.extend(of_server(&node.server, &info).await.into_iter().map(|finding| {
            let what = format!("{name}: {}", finding.what);
            Finding::new(finding.severity, what, finding.advice)
        }));
    }
    Ok(findings)
}

fn number_of_nodes(store: &RedlockStore) -> Finding {
    let count = store.nodes.len();
    let what = format!("{count} nodes, of which {} may fail", count - store.majority);
    if count % 2 == 1 {
        return Finding::fine(what);
    }
    let advice = "an even number tolerates no more than one less, and votes split more often: \
                  add or remove one";
    Finding::warning(what, advice)
}

fn voters(store: &RedlockStore, probe: &Probe<'_>) -> Finding {
    let members = probe.members().len();
    let what = format!("{members} of {} nodes vote (list {})", store.nodes.len(), store.list);
    if members == store.nodes.len() {
        Finding::fine(what)
    } else if members >= store.majority {
        Finding::warning(what, "see below for those that do not")
    } else {
        let advice = "no lock can be had: start the missing nodes; if the data of a majority is \
                      lost for good, `leasehold doctor --repair` starts anew";
        Finding::danger(what, advice)
    }
}

fn status(store: &RedlockStore, name: &str, status: &NodeStatus, highest: Option<u64>) -> Finding {
    match status {
        _ if status.is_on_another(&store.list) => Finding::danger(
            format!("{name}: it belongs to another list of nodes"),
            "two groups of clients that share some nodes exclude each other only by luck: write \
             the same nodes in the same words in all URLs",
        ),
        NodeStatus::Member(known) if Some(known.epoch) < highest => Finding::warning(
            format!("{name}: it votes, but in the older epoch {}", known.epoch),
            "a recovery passed it by: the next client seals it",
        ),
        NodeStatus::Member(known) => Finding::fine(format!(
            "{name}: it votes (epoch {}, longest TTL {} s)",
            known.epoch,
            known.longest.as_secs_f64()
        )),
        NodeStatus::Joining(known) => Finding::warning(
            format!("{name}: it had lost its data and waits in epoch {}", known.epoch),
            format!(
                "it votes again when the longest TTL ever granted ({} s) has passed, if a client \
                 runs",
                known.longest.as_secs_f64()
            ),
        ),
        NodeStatus::Restarted(_) => Finding::warning(
            format!("{name}: it was restarted, and may have come back with older data"),
            "a client that runs brings it back after the longest TTL, as long as a majority of \
             the others votes; with appendonly yes and appendfsync always it votes at once",
        ),
        NodeStatus::Blank | NodeStatus::Noticed { .. } => Finding::warning(
            format!("{name}: it has no marker: it is new, or has lost its data"),
            "a client that runs brings it back, as long as a majority of the others votes; set \
             appendonly yes so that it keeps its data",
        ),
        NodeStatus::Unknown => Finding::danger(
            format!("{name}: its marker is not ours"),
            "another program writes this key, or a newer version of this one",
        ),
    }
}

fn offset(name: &str, clock: u64, median: u64) -> Finding {
    let offset = clock.abs_diff(median);
    let seconds = Duration::from_micros(offset).as_secs_f64();
    if offset < NOTABLE_OFFSET {
        let what = format!("{name}: its clock differs by {:.0} ms from the others", seconds * 1e3);
        return Finding::fine(what);
    }
    let what = format!("{name}: its clock differs by {seconds:.1} s from the others");
    if offset < FURTHEST {
        let advice = "leases do not compare clocks, but keys expire by them when they are set: run \
                      an NTP client";
        return Finding::warning(what, advice);
    }
    let advice = "it refuses the tokens of the others, so that acquisitions take two round trips; \
                  and if its clock is set back by as much, tokens of idle locks may repeat there: \
                  run an NTP client";
    Finding::danger(what, advice)
}
