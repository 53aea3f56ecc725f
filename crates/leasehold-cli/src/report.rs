//! What `--json` prints. The field names are a promise to programs: docs/guide/command.md
//! lists them, and they only ever become more.

use std::time::Duration;

use leasehold::{EndsWith, Finding, ForcedInfo, Guarantees, Holder, LockInfo, Scope, Severity};
use serde::Serialize;

use crate::formatting;
use crate::secrets::blot;

/// A lock.
#[derive(Debug, Serialize)]
pub(crate) struct Lock {
    pub(crate) name: String,
    pub(crate) held: bool,
    pub(crate) holder: Option<HeldBy>,
    pub(crate) since: Option<String>,
    pub(crate) age_seconds: Option<f64>,
    pub(crate) remaining_seconds: Option<f64>,
    pub(crate) never_expires: bool,
    pub(crate) token: Option<u64>,
    pub(crate) owner: Option<String>,
    pub(crate) waiters: usize,
    pub(crate) last_force_release: Option<ForceRelease>,
}

/// Who holds a lock.
#[derive(Debug, Serialize)]
pub(crate) struct HeldBy {
    pub(crate) label: String,
    pub(crate) pid: u32,
    pub(crate) host: String,
}

/// An operator's release.
#[derive(Debug, Serialize)]
pub(crate) struct ForceRelease {
    pub(crate) by: String,
    pub(crate) reason: String,
    pub(crate) at: String,
    pub(crate) token: u64,
}

/// What a store promises.
#[derive(Debug, Serialize)]
pub(crate) struct Promises {
    pub(crate) store: &'static str,
    pub(crate) consistency: String,
    pub(crate) scope: &'static str,
    pub(crate) ends_with: &'static str,
    pub(crate) tokens: &'static str,
    pub(crate) fair: bool,
    pub(crate) survives_restart: bool,
    pub(crate) may_lose: &'static [&'static str],
}

/// Something about a store's set-up.
#[derive(Debug, Serialize)]
pub(crate) struct Found {
    pub(crate) severity: &'static str,
    pub(crate) what: String,
    pub(crate) advice: String,
}

impl From<&LockInfo> for Lock {
    fn from(info: &LockInfo) -> Self {
        let lease = info.lease();
        let since = lease.and_then(|lease| lease.held_by.since);
        let holder = lease.and_then(|lease| lease.held_by.holder.as_ref());
        Self {
            name: info.name.to_string(),
            held: lease.is_some(),
            holder: holder.map(HeldBy::from),
            since: since.map(formatting::stamp),
            age_seconds: since.and_then(|since| since.elapsed().ok()).map(seconds),
            remaining_seconds: lease.and_then(|lease| lease.remaining).map(seconds),
            never_expires: lease.is_some_and(|lease| lease.held_by.never_expires),
            token: lease.and_then(|lease| lease.token).map(|token| token.get()),
            owner: lease.and_then(|lease| lease.owner).map(|owner| owner.to_string()),
            waiters: info.waiters,
            last_force_release: info.forced.as_ref().map(ForceRelease::from),
        }
    }
}

impl From<&Holder> for HeldBy {
    fn from(holder: &Holder) -> Self {
        Self { label: holder.label.clone(), pid: holder.pid, host: holder.host.clone() }
    }
}

impl From<&ForcedInfo> for ForceRelease {
    fn from(info: &ForcedInfo) -> Self {
        Self {
            by: info.forced.by.clone(),
            reason: info.forced.reason.clone(),
            at: formatting::stamp(info.at),
            token: info.token.get(),
        }
    }
}

impl From<&Guarantees> for Promises {
    fn from(guarantees: &Guarantees) -> Self {
        Self {
            store: guarantees.store,
            // As `--require` takes it.
            consistency: guarantees.consistency.to_string().replace(' ', "-"),
            scope: match guarantees.scope {
                Scope::Process => "process",
                Scope::Machine => "machine",
                Scope::Network => "network",
                _ => "other",
            },
            ends_with: match guarantees.ends_with {
                EndsWith::Ttl => "ttl",
                EndsWith::Session => "session",
                _ => "other",
            },
            tokens: guarantees.tokens,
            fair: guarantees.fair,
            survives_restart: guarantees.survives_restart,
            may_lose: guarantees.may_lose,
        }
    }
}

impl From<&Finding> for Found {
    fn from(finding: &Finding) -> Self {
        Self {
            severity: severity(finding.severity),
            what: blot(&finding.what),
            advice: blot(&finding.advice),
        }
    }
}

/// A severity in a word. One that we do not know yet is taken for the worst.
pub(crate) fn severity(severity: Severity) -> &'static str {
    match severity {
        Severity::Fine => "fine",
        Severity::Warning => "warning",
        _ => "unsafe",
    }
}

/// Seconds, to the millisecond.
fn seconds(duration: Duration) -> f64 {
    duration.as_millis() as f64 / 1_000.0
}
