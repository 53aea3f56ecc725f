//! `leasehold doctor`: what the store finds about its own set-up.

use leasehold::Locks;
use leasehold::backend::{Finding, Severity};
use serde::Serialize;

use crate::args::Doctor;
use crate::config::Config;
use crate::exit::{Failure, UNSAFE};
use crate::report::{self, Found, severity};
use crate::show::promises;
use crate::store::{Store, refused};
use crate::table::details;
use crate::{screen, words};

#[derive(Debug, Serialize)]
struct Document {
    worst: &'static str,
    findings: Vec<Found>,
    guarantees: report::Promises,
}

/// Prints the findings.
pub(crate) fn doctor(args: Doctor, config: &Config) -> Result<u8, Failure> {
    Store::resolve(args.on, config)?.with("leasehold doctor", async |locks: Locks| {
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

fn lines(finding: &Finding) -> impl Iterator<Item = (&'static str, String)> {
    let found = Found::from(finding);
    let title = match found.severity {
        "unsafe" => "UNSAFE",
        severity => severity,
    };
    let advice = Some(found.advice).filter(|advice| !advice.is_empty());
    let advice = advice.map(|advice| ("", words::printable(&advice)));
    [(title, words::printable(&found.what))].into_iter().chain(advice)
}
