//! `leasehold doctor`: what the store finds about its own set-up.

use leasehold::clock::Clock;
use leasehold::{Finding, Locks, Severity, StoreKind};
use serde::Serialize;

use crate::args::Doctor;
use crate::config::Config;
use crate::exit::{Failure, UNSAFE, USAGE};
use crate::report::{self, Found, severity};
use crate::show::promises;
use crate::store::{Store, refused};
use crate::table::details;
use crate::{formatting, screen};

#[derive(Debug, Serialize)]
struct Document {
    worst: &'static str,
    findings: Vec<Found>,
    guarantees: report::Promises,
}

/// Prints the findings.
pub(crate) fn doctor(args: Doctor, config: &Config) -> Result<u8, Failure> {
    let store = Store::resolve(args.on, config)?;
    if args.repair {
        repair(&store)?;
    }
    store.with("leasehold doctor", async |locks: Locks| {
        let findings = locks.examine().await.map_err(refused)?;
        let worst = findings.iter().map(|finding| finding.severity).max();
        let worst = worst.unwrap_or(Severity::Fine);
        if args.json {
            screen::print_json(&Document {
                worst: severity(worst),
                findings: findings.iter().map(Found::from).collect(),
                guarantees: locks.guarantees().into(),
            })?;
        } else {
            let mut pairs: Vec<_> = findings.iter().flat_map(lines).collect();
            pairs.push(("", String::new()));
            pairs.extend(promises(locks.guarantees()));
            screen::print(&details(&pairs, screen::width()))?;
        }
        Ok(if worst >= Severity::Unsafe { UNSAFE } else { 0 })
    })
}

/// Brings back what can be brought back, and says what was done.
fn repair(store: &Store) -> Result<(), Failure> {
    if !StoreKind::Redlock.schemes().contains(&store.scheme()) {
        let message = "only the nodes of a redlock can be repaired: for other stores see what \
                       `leasehold doctor` advises";
        return Err(Failure::new(USAGE, message));
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::broken("cannot start", &error))?;
    let repairing = leasehold::backend::redlock::repair(store.url(), Clock::boot());
    for finding in runtime.block_on(repairing).map_err(refused)? {
        for (title, text) in lines(&finding) {
            eprintln!("repair: {title} {text}");
        }
    }
    Ok(())
}

fn lines(finding: &Finding) -> impl Iterator<Item = (&'static str, String)> {
    let found = Found::from(finding);
    let title = match found.severity {
        "unsafe" => "UNSAFE",
        severity => severity,
    };
    let advice = Some(found.advice).filter(|advice| !advice.is_empty());
    let advice = advice.map(|advice| ("", formatting::printable(&advice)));
    [(title, formatting::printable(&found.what))].into_iter().chain(advice)
}
