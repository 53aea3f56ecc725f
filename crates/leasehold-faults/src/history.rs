//! Histories: what workers did under faults, as files, and what must hold in them.
//!
//! Each process appends to a file of its own ([`recorder`]); merged by time they are a
//! [`History`], which pure functions judge: [`unique`] (U), [`order`] (RT), [`fence`]
//! (F), [`deadline`] (D), [`exclusion`] (X), [`liveness`] (L). [`control`] says whether the
//! run could have shown anything at all, [`report`] puts it all together.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

pub mod control;
pub mod deadline;
pub mod event;
pub mod exclusion;
pub mod fence;
pub mod lease;
pub mod liveness;
pub mod order;
pub mod recorder;
pub mod report;
#[cfg(test)]
mod sketch;
pub mod unique;
pub mod windows;

use event::{Event, What};

/// What one run did, in the order of time.
#[derive(Debug, Clone, Default)]
pub struct History {
    /// Its events; those of one worker are in the order it recorded them.
    pub events: Vec<Event>,
}

/// Something that must not be in a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// When, in nanoseconds since boot.
    pub at: u64,
    /// On which lock.
    pub lock: String,
    /// What, with all that is needed to find it in the files.
    pub what: String,
}

impl History {
    /// These events, by time.
    pub fn new(mut events: Vec<Event>) -> Self {
        // Stable: one worker's events at the same nanosecond stay in order.
        events.sort_by_key(|event| event.at);
        Self { events }
    }

    /// Reads all files of a run.
    pub fn read(folder: &Path) -> Result<Self> {
        let mut events = Vec::new();
        for entry in fs::read_dir(folder).with_context(|| format!("{}", folder.display()))? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == "jsonl") {
                read_file(&path, &mut events)?;
            }
        }
        Ok(Self::new(events))
    }

    /// How long, beyond the TTL, a lock may be out of reach after a fault, in nanoseconds.
    pub fn failover(&self) -> u64 {
        let began = self.events.iter().find_map(|event| match event.what {
            What::Began { failover_ms, .. } => Some(failover_ms * 1_000_000),
            _ => None,
        });
        began.unwrap_or(liveness::BOUND)
    }

    /// How much later than the store a holder may hear that its lease was ended, in nanoseconds.
    pub fn heard(&self) -> u64 {
        let began = self.events.iter().find_map(|event| match event.what {
            What::Began { heard_ms, .. } => Some(heard_ms * 1_000_000),
            _ => None,
        });
        began.unwrap_or(0)
    }

    /// The TTL of its leases in nanoseconds.
    pub fn ttl(&self) -> u64 {
        let began = self.events.iter().find_map(|event| match event.what {
            What::Began { ttl_ms, .. } => Some(ttl_ms * 1_000_000),
            _ => None,
        });
        began.unwrap_or(0)
    }
}

fn read_file(path: &Path, events: &mut Vec<Event>) -> Result<()> {
    let text = fs::read_to_string(path).with_context(|| format!("{}", path.display()))?;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        // The last line of a process that died while it wrote.
        let Some(line) = line.strip_suffix('\n') else { break };
        let event = serde_json::from_str(line)
            .with_context(|| format!("{}:{}: {line}", path.display(), number + 1))?;
        events.push(event);
    }
    Ok(())
}
