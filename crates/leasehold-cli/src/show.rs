//! `leasehold show`: everything about one lock, and what its store promises.

use leasehold::{Guarantees, LockInfo, Locks};
use serde::Serialize;

use crate::args::Show;
use crate::config::Config;
use crate::exit::Failure;
use crate::plan::checked;
use crate::store::{Store, refused};
use crate::table::details;
use crate::{formatting, report, screen};

#[derive(Debug, Serialize)]
struct Document {
    lock: report::Lock,
    guarantees: report::Promises,
}

/// Prints one lock.
pub(crate) fn show(args: Show, config: &Config) -> Result<u8, Failure> {
    let name = checked(&args.name)?;
    Store::resolve(args.on, config)?.with("leasehold show", async |locks: Locks| {
        let info = locks.inspect(&name).await.map_err(refused)?;
        let guarantees = locks.guarantees();
        if args.json {
            screen::print_json(&Document { lock: (&info).into(), guarantees: guarantees.into() })?;
        } else {
            let mut pairs = lock(&info);
            pairs.push(("", String::new()));
            pairs.extend(promises(guarantees));
            screen::print(&details(&pairs, screen::width()))?;
        }
        Ok(0)
    })
}

fn lock(info: &LockInfo) -> Vec<(&'static str, String)> {
    let mut pairs = vec![("lock", formatting::printable(info.name.as_str()))];
    match info.lease() {
        None => pairs.push(("held by", "nobody".to_owned())),
        Some(lease) => {
            pairs.push(("held by", formatting::holder(lease.held_by.holder.as_ref())));
            pairs.extend(lease.held_by.since.map(|since| ("since", formatting::moment(since))));
            let left = |left| format!("{}, unless it is renewed", formatting::duration(left));
            pairs.extend(lease.remaining.map(|remaining| ("left", left(remaining))));
            if lease.held_by.never_expires {
                pairs.push(("left", formatting::NEVER_EXPIRES.to_owned()));
            }
            pairs.extend(lease.token.map(|token| ("token", token.to_string())));
            pairs.extend(lease.owner.map(|owner| ("owner", owner.to_string())));
        }
    }
    pairs.push(("waiters", info.waiters.to_string()));
    if let Some(record) = &info.forced {
        pairs
            .push(("forced", format!("{}, token {}", formatting::moment(record.at), record.token)));
        pairs.push(("  by", formatting::printable(&record.forced.by)));
        pairs.push(("  reason", formatting::printable(&record.forced.reason)));
    }
    pairs
}

/// What a store promises, line by line.
pub(crate) fn promises(guarantees: &Guarantees) -> Vec<(&'static str, String)> {
    let order = if guarantees.fair { "first come, first served" } else { "no order" };
    let restart = if guarantees.survives_restart { "leases survive it" } else { "forgets leases" };
    let mut pairs = vec![
        ("store", guarantees.store.to_owned()),
        ("consistency", guarantees.consistency.to_string()),
        ("reaches", guarantees.scope.to_string()),
        ("ends with", guarantees.ends_with.to_string()),
        ("tokens", guarantees.tokens.to_owned()),
        ("waiting", order.to_owned()),
        ("restart", restart.to_owned()),
    ];
    pairs.extend(guarantees.may_lose.iter().map(|fault| ("may lose", (*fault).to_owned())));
    pairs
}
