//! `leasehold ls`: who holds what.

use leasehold::{Holder, LockInfo, Locks};
use serde::Serialize;

use crate::args::List;
use crate::config::Config;
use crate::exit::{Failure, tell};
use crate::store::{Store, refused};
use crate::table::{Column, table};
use crate::{formatting, report, screen};

const COLUMNS: [Column; 7] = [
    Column { title: "LOCK", least: Some(12), rank: 0, number: false },
    Column { title: "HOLDER", least: Some(14), rank: 1, number: false },
    Column { title: "WHERE", least: Some(10), rank: 4, number: false },
    Column { title: "AGE", least: None, rank: 2, number: true },
    Column { title: "LEFT", least: None, rank: 3, number: true },
    Column { title: "TOKEN", least: None, rank: 6, number: true },
    Column { title: "WAITERS", least: None, rank: 5, number: true },
];

#[derive(Debug, Serialize)]
struct Document {
    store: &'static str,
    locks: Vec<report::Lock>,
}

/// Prints the locks that are held or waited for.
pub(crate) fn list(args: List, config: &Config) -> Result<u8, Failure> {
    Store::resolve(args.on, config)?.with("leasehold ls", async |locks: Locks| {
        let infos = locks.list(&args.prefix).await.map_err(refused)?;
        if args.json {
            let locks_found = infos.iter().map(report::Lock::from).collect();
            let store = locks.guarantees().store;
            screen::print_json(&Document { store, locks: locks_found })?;
        } else if infos.is_empty() {
            tell(match args.prefix.as_str() {
                "" => "no lock is held or waited for".to_owned(),
                prefix => format!("no lock that begins with {prefix:?} is held or waited for"),
            });
        } else {
            let rows: Vec<_> = infos.iter().map(row).collect();
            screen::print(&table(&COLUMNS, &rows, screen::width()))?;
        }
        Ok(0)
    })
}

fn row(info: &LockInfo) -> Vec<String> {
    let unknown = || "-".to_owned();
    let lease = info.lease();
    let age = lease.and_then(|lease| lease.held_by.since?.elapsed().ok());
    let never = lease.filter(|lease| lease.held_by.never_expires).map(|_| "never".to_owned());
    let left = lease.and_then(|lease| lease.remaining).map(formatting::duration).or(never);
    let holder = lease.and_then(|lease| lease.held_by.holder.as_ref());
    let place = |holder: &Holder| formatting::printable(&format!("{}@{}", holder.pid, holder.host));
    vec![
        formatting::printable(info.name.as_str()),
        holder.map_or_else(unknown, |holder| formatting::printable(&holder.label)),
        holder.map_or_else(unknown, place),
        age.map_or_else(unknown, formatting::duration),
        left.unwrap_or_else(unknown),
        lease.and_then(|lease| lease.token).map_or_else(unknown, |token| token.to_string()),
        info.waiters.to_string(),
    ]
}
