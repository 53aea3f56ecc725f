//! What `doctor` shows of the embedded store.

use std::path::Path;

use super::connection::Session;
use super::error::Fault;
use super::{file, filesystem, schema};
use crate::backend::{Finding, Severity};

/// A log beyond this means that checkpoints do not get through.
const LONG_LOG: u64 = 64 << 20;
/// Too little to go on with.
const LITTLE_SPACE: u64 = 16 << 20;

pub(super) fn examine(session: &mut Session, path: &Path) -> Result<Vec<Finding>, Fault> {
    let version: i64 = session.connection.pragma_query_value(None, "user_version", |r| r.get(0))?;
    let check: String = session.connection.pragma_query_value(None, "quick_check", |r| r.get(0))?;
    let mut findings = vec![
        fine(format!("database {}", path.display())),
        fine(format!("SQLite {}, schema {version} of {}", rusqlite::version(), schema::VERSION)),
        match check.as_str() {
            "ok" => fine("the database is sound".to_owned()),
            damage => Finding::new(
                Severity::Unsafe,
                format!("the database is damaged: {damage}"),
                "stop all processes that use it, then restore or remove it",
            ),
        },
        log(path),
    ];
    // All of these may have come since it was opened.
    let refusals = [
        (
            file::refuse_second_name(path),
            "remove the other names before a process opens it by one of them",
        ),
        (
            file::refuse_mounts(path),
            "stop all processes that use it, unmount the file, and mount its directory instead",
        ),
        (filesystem::check(path), "stop all processes that use it, and move it to a local disk"),
    ];
    for (refusal, advice) in refusals {
        if let Err(error) = refusal {
            findings.push(Finding::new(Severity::Unsafe, error.to_string(), advice));
        }
    }
    findings.extend(path.parent().and_then(filesystem::look).map(|(kind, free)| disk(kind, free)));
    Ok(findings)
}

fn fine(what: String) -> Finding {
    Finding::new(Severity::Fine, what, "")
}

fn log(path: &Path) -> Finding {
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    // Its size alone: opening it would drop SQLite's locks.
    let bytes = std::fs::metadata(log).map_or(0, |log| log.len());
    let what = format!("write-ahead log of {} KiB", bytes >> 10);
    if bytes < LONG_LOG {
        return fine(what);
    }
    Finding::new(
        Severity::Warning,
        what,
        "it cannot be checkpointed: look for a process that keeps a transaction open",
    )
}

fn disk(kind: u32, free: u64) -> Finding {
    let what = format!("local file system (type {kind:#x}), {} MiB free", free >> 20);
    if free >= LITTLE_SPACE {
        return fine(what);
    }
    Finding::new(Severity::Warning, what, "when the disk is full no lock can be taken: make room")
}
