//! What a node keeps of itself: who it votes with, and bounds of all it ever granted.

use leasehold_models::quorum::node::{Node, Status};

use super::names::list;

/// By how much the ceiling is ahead of the token that lifted it.
const LEAD: u64 = 1_000_000;
/// For how long a record outlives the moment of its token, in µs.
const RETENTION: u64 = 3_600_000_000;

/// The numbers of the marker.
#[derive(Debug, Default, Clone)]
pub(super) struct Marker {
    /// The longest TTL, in ms.
    pub(super) longest: u64,
    /// No token is above it.
    pub(super) ceiling: u64,
    /// No token is below it.
    pub(super) floor: u64,
    /// The run of the server that wrote it, and whether that syncs every write.
    pub(super) run: String,
    /// Since when it waits to be readmitted, in µs.
    pub(super) since: u64,
}

impl Marker {
    /// Something is granted for so long, under such a token.
    pub(super) fn raise(&mut self, ttl: u64, token: u64) {
        self.longest = self.longest.max(ttl);
        if token > self.ceiling {
            self.ceiling = token + LEAD;
        }
    }

    /// Whether it has waited for the longest TTL, and for what clocks may differ in their pace.
    pub(super) fn has_waited(&self, micros: u64) -> bool {
        self.longest == 0 || micros - self.since >= self.longest * 1020 + 10_000
    }

    /// A number that no token of a lock is above whose record has expired, or never was.
    pub(super) fn above_all_expired(&self, micros: u64) -> u64 {
        self.floor.max(self.ceiling.min(micros - RETENTION))
    }

    /// As the server keeps it.
    pub(super) fn text(&self, node: &Node<u64>) -> String {
        let (list, epoch) = (list(node.list), node.epoch);
        let Self { longest, ceiling, floor, run, since } = self;
        let status = match node.status {
            Status::Blank => return String::new(),
            Status::Noticed => return format!("noticed {list}"),
            Status::Joining => {
                return format!("joining {list} {epoch} {longest} {ceiling} {floor} {run} {since}");
            }
            Status::Restarted => "restarted",
            Status::Member => "member",
        };
        format!("{status} {list} {epoch} {longest} {ceiling} {floor} {run}")
    }
}
