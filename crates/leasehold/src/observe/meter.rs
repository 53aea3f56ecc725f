//! The metrics of a client, through the `metrics` facade. Install a recorder *before*
//! connecting: what a client counts into is looked up once.
//!
//! | metric | kind | labels besides `store` and `class` |
//! |---|---|---|
//! | [`ATTEMPTS`] | counter | |
//! | [`ACQUIRED`] | counter | |
//! | [`CONTENDED`] | counter | |
//! | [`REFUSED`] | counter | `why`: held, failed, cancelled |
//! | [`ACQUIRE_SECONDS`] | histogram | |
//! | [`RENEWALS`] | counter | `result`: ok, failed |
//! | [`HOLD_SECONDS`] | histogram | |
//! | [`LOST`] | counter | `reason` |
//! | [`FORCED`] | counter | |
//! | [`HELD`] | gauge | |
//! | [`LONGEST_STALL_SECONDS`] | gauge | (no class) |
//!
//! `class` is the lock's name before the first `:`, or `other`. Names themselves are no
//! labels: they have no end.

use std::collections::HashMap;
use std::sync::OnceLock;

use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};
use parking_lot::RwLock;

use crate::event::{EventKind, Refusal};
use crate::loss::LossReason;
use crate::name::Name;

/// Acquisitions that began.
pub const ATTEMPTS: &str = "leasehold_acquire_attempts_total";
/// Acquisitions that got the lock.
pub const ACQUIRED: &str = "leasehold_acquired_total";
/// Acquisitions that found the lock held.
pub const CONTENDED: &str = "leasehold_contended_total";
/// Acquisitions that ended without the lock.
pub const REFUSED: &str = "leasehold_refused_total";
/// How long acquisitions that got the lock took.
pub const ACQUIRE_SECONDS: &str = "leasehold_acquire_seconds";
/// Renewals that were answered, or not.
pub const RENEWALS: &str = "leasehold_renewals_total";
/// How long leases were held, until released or lost.
pub const HOLD_SECONDS: &str = "leasehold_hold_seconds";
/// Leases that were lost.
pub const LOST: &str = "leasehold_lost_total";
/// Locks that this client released by force.
pub const FORCED: &str = "leasehold_force_released_total";
/// Leases held now.
pub const HELD: &str = "leasehold_held";
/// The longest this process was seen to stand still while it held leases.
pub const LONGEST_STALL_SECONDS: &str = "leasehold_longest_stall_seconds";

/// More classes than this are counted as `other`: somebody put ids before the colon.
const MOST_CLASSES: usize = 100;
const OTHER: &str = "other";

/// Counts a client's events.
#[derive(Debug)]
pub(crate) struct Meter {
    store: &'static str,
    ids: RwLock<HashMap<Box<str>, ClassId>>,
    /// By their ids, the first of which is [`OTHER`].
    classes: [OnceLock<Box<Class>>; 1 + MOST_CLASSES],
}

/// The class of a lock, looked up once for all that happens in an acquisition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ClassId(u8);

struct Class {
    attempts: Counter,
    acquired: Counter,
    contended: Counter,
    refused_held: Counter,
    refused_failed: Counter,
    refused_cancelled: Counter,
    acquire_seconds: Histogram,
    renewals_ok: Counter,
    renewals_failed: Counter,
    hold_seconds: Histogram,
    held: Gauge,
    forced: Counter,
    labels: [(&'static str, String); 2],
}

impl std::fmt::Debug for Class {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Class").field("labels", &self.labels).finish_non_exhaustive()
    }
}

impl Meter {
    pub(crate) fn new(store: &'static str) -> Self {
        Self { store, ids: RwLock::default(), classes: [const { OnceLock::new() }; _] }
    }

    /// The class of a lock of this name.
    pub(crate) fn class_of(&self, name: &Name) -> ClassId {
        let Some((label, _)) = name.as_str().split_once(':') else { return self.open(0, OTHER) };
        let ids = self.ids.read();
        if let Some(id) = ids.get(label) {
            return *id;
        }
        // Those of no class of their own are many, and learn that from a look too.
        if label == OTHER || ids.len() == MOST_CLASSES {
            return self.open(0, OTHER);
        }
        drop(ids);
        let mut ids = self.ids.write();
        let known = ids.get(label).map_or(ids.len() + 1, |id| usize::from(id.0));
        if known > MOST_CLASSES {
            return self.open(0, OTHER);
        }
        let id = self.open(known as u8, label);
        ids.insert(label.into(), id);
        id
    }

    fn open(&self, id: u8, label: &str) -> ClassId {
        self.classes[usize::from(id)].get_or_init(|| Box::new(Class::new(self.store, label)));
        ClassId(id)
    }

    pub(crate) fn count(&self, class: ClassId, kind: &EventKind) {
        if let Some(class) = self.classes[usize::from(class.0)].get() {
            class.count(kind);
        }
    }
}

impl Class {
    fn count(&self, kind: &EventKind) {
        match kind {
            EventKind::Asked => self.attempts.increment(1),
            EventKind::Waiting(_) => self.contended.increment(1),
            EventKind::Granted { waited, .. } => {
                self.acquired.increment(1);
                self.acquire_seconds.record(*waited);
                self.held.increment(1);
            }
            // How it ends is counted.
            EventKind::Troubled(_) => {}
            EventKind::Renewed => self.renewals_ok.increment(1),
            EventKind::Doubtful(_) => self.renewals_failed.increment(1),
            EventKind::Lost(loss) => {
                self.lost(&loss.reason).increment(1);
                self.hold_seconds.record(loss.held);
                self.held.decrement(1);
            }
            EventKind::Released { held } => {
                self.hold_seconds.record(*held);
                self.held.decrement(1);
            }
            EventKind::Forced(_) => self.forced.increment(1),
            EventKind::Refused { why: Refusal::Held(_), .. } => self.refused_held.increment(1),
            EventKind::Refused { why: Refusal::Failed(_), .. } => self.refused_failed.increment(1),
            EventKind::Refused { why: Refusal::Cancelled, .. } => {
                self.refused_cancelled.increment(1);
            }
        }
    }

    fn new(store: &'static str, class: &str) -> Self {
        let labels = [("store", store.to_owned()), ("class", class.to_owned())];
        let refused = |why| {
            let [store, class] = labels.clone();
            counter!(REFUSED, &[store, class, ("why", String::from(why))])
        };
        let renewals = |result| {
            let [store, class] = labels.clone();
            counter!(RENEWALS, &[store, class, ("result", String::from(result))])
        };
        Self {
            attempts: counter!(ATTEMPTS, &labels),
            acquired: counter!(ACQUIRED, &labels),
            contended: counter!(CONTENDED, &labels),
            refused_held: refused("held"),
            refused_failed: refused("failed"),
            refused_cancelled: refused("cancelled"),
            acquire_seconds: histogram!(ACQUIRE_SECONDS, &labels),
            renewals_ok: renewals("ok"),
            renewals_failed: renewals("failed"),
            hold_seconds: histogram!(HOLD_SECONDS, &labels),
            held: gauge!(HELD, &labels),
            forced: counter!(FORCED, &labels),
            labels,
        }
    }

    /// Losses are rare: their counter is looked up each time.
    fn lost(&self, reason: &LossReason) -> Counter {
        let reason = match reason {
            LossReason::Expired => "expired",
            LossReason::Taken => "taken",
            LossReason::Forced(_) => "forced",
            LossReason::SessionEnded => "session_ended",
            LossReason::Unreachable => "unreachable",
            LossReason::MaxHold => "max_hold",
            LossReason::StoreGone => "store_gone",
        };
        let [store, class] = self.labels.clone();
        counter!(LOST, &[store, class, ("reason", reason.to_owned())])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_what_is_before_the_colon_and_there_are_not_too_many() {
        let meter = Meter::new("memory");
        let class = |name: &str| meter.class_of(&Name::new(name).unwrap());
        assert_eq!(class("jobs:1"), class("jobs:2"));
        assert_ne!(class("jobs:1"), class("report:1"));
        assert_eq!(class("nightly"), class("other:x"));
        let others = (0..2 * MOST_CLASSES).filter(|id| class(&format!("{id}:x")) == class("other"));
        assert_eq!(others.count(), MOST_CLASSES + 2, "two of the hundred are taken above");
        assert_ne!(class("jobs:3"), class("other"));
    }

    #[test]
    fn what_is_known_is_looked_up_beside_others_who_look() {
        let meter = Meter::new("memory");
        let class = |name: &str| meter.class_of(&Name::new(name).unwrap());
        for id in 0..MOST_CLASSES {
            class(&format!("{id}:x"));
        }
        // Who wants to write would wait for this one for ever.
        let _looking = meter.ids.read();
        assert_eq!(class("one too many:x"), class("other:x"));
        assert_ne!(class("7:x"), class("other"));
    }
}
