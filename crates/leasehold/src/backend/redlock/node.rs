//! One of the nodes: an independent Redis master that votes, or why it does not.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::script::NODE_STATUS;
use super::{Call, Connector, Failure, Host, Role, Server, Settings, Value, Waiters, text};
use crate::clock::Clock;
use crate::error::Result;

/// A node, and what is heard from it.
pub(super) struct Node {
    pub(super) index: usize,
    pub(super) server: Arc<Server>,
    /// Its messages: whom to wake, who lost a lease by force.
    pub(super) messages: Arc<Waiters>,
}

/// What a node said to a call.
#[derive(Debug)]
pub(super) enum Said {
    /// It did it: an answer for each item of the call.
    Answers(Vec<Value>),
    /// It does not vote with this client: what it is instead.
    NoVote(NodeStatus),
    /// Nothing, or nothing of use.
    Failed(Failure),
}

impl Node {
    pub(super) fn new(
        index: usize,
        host: &Host,
        settings: &Settings,
        clock: &Clock,
        channel: &str,
        marker: &str,
    ) -> Result<Arc<Self>> {
        let messages = Waiters::new(clock.clone());
        let connector = Connector::new(settings, clock, &messages)?;
        let (channel, marker) = (channel.to_owned(), marker.to_owned());
        let role = Role::Voter { channel, marker, status: &NODE_STATUS };
        let server = Server::new(&connector, host, role);
        Ok(Arc::new(Self { index, server, messages }))
    }

    pub(super) fn name(&self) -> String {
        self.server.host.to_string()
    }

    /// Calls a script that votes.
    pub(super) async fn ask(&self, call: &Call) -> Said {
        match self.server.call(call).await {
            Ok(Value::Array(answers)) => Said::Answers(answers),
            // Yes to each of so many.
            Ok(Value::Int(count)) => {
                Said::Answers(vec![Value::Int(1); usize::try_from(count).unwrap_or(0)])
            }
            Ok(other) => Said::NoVote(text(&other).map_or(NodeStatus::Unknown, NodeStatus::parse)),
            Err(failure) => Said::Failed(failure),
        }
    }
}

/// What a node's marker says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum NodeStatus {
    /// It has no marker: it is new, or has forgotten everything.
    Blank,
    /// It was told its list, and waits for all others to be told.
    Noticed { list: String },
    /// It was restarted, perhaps with older data, and does not vote.
    Restarted(Membership),
    /// It waits to vote again.
    Joining(Membership),
    /// It votes.
    Member(Membership),
    /// Nothing that a client of ours writes.
    Unknown,
}

/// What a voter knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Membership {
    pub(super) list: String,
    pub(super) epoch: u64,
    /// The longest TTL that was ever granted here.
    pub(super) longest: Duration,
    /// No token here was ever above it.
    pub(super) ceiling: u64,
    /// Since when one that is joining waits, by its own clock in µs.
    pub(super) since: u64,
}

impl Membership {
    /// How long one that is joining still waits, when its clock says this: for the longest TTL,
    /// and what clocks may differ in their pace. The node checks it (`node_status.lua`).
    pub(super) fn left(&self, clock: u64) -> Duration {
        let longest = self.longest;
        let whole = match longest.is_zero() {
            true => longest,
            false => longest + longest / 50 + Duration::from_millis(10),
        };
        whole.saturating_sub(Duration::from_micros(clock.saturating_sub(self.since)))
    }
}

impl NodeStatus {
    pub(super) fn parse(marker: &str) -> Self {
        if marker.is_empty() {
            return Self::Blank;
        }
        Self::read(marker).unwrap_or(Self::Unknown)
    }

    fn read(marker: &str) -> Option<Self> {
        let mut words = marker.split(' ');
        let (status, list) = (words.next()?, words.next()?.to_owned());
        if status == "noticed" {
            return Some(Self::Noticed { list });
        }
        let mut number = || words.next()?.parse().ok();
        let epoch = number()?;
        let longest = Duration::from_millis(number()?);
        let ceiling = number()?;
        // The floor and the run come before it.
        let since = words.nth(2).and_then(|since| since.parse().ok()).unwrap_or(0);
        let membership = Membership { list, epoch, longest, ceiling, since };
        match status {
            "member" => Some(Self::Member(membership)),
            "joining" => Some(Self::Joining(membership)),
            "restarted" => Some(Self::Restarted(membership)),
            _ => None,
        }
    }

    /// What it knows, if it ever voted or waits to.
    pub(super) fn known(&self) -> Option<&Membership> {
        match self {
            Self::Member(known) | Self::Joining(known) | Self::Restarted(known) => Some(known),
            Self::Blank | Self::Noticed { .. } | Self::Unknown => None,
        }
    }

    /// Whether it says that it belongs to another list than this.
    pub(super) fn is_on_another(&self, list: &str) -> bool {
        match self {
            Self::Noticed { list: its } => its != list,
            _ => self.known().is_some_and(|known| known.list != list),
        }
    }
}

/// One name for a set of nodes, whatever the order they are written in. Do not change this:
/// clients of all versions must agree on it.
pub(super) fn list_hash<T: fmt::Display>(nodes: impl Iterator<Item = T>) -> String {
    let mut names: Vec<String> = nodes.map(|node| node.to_string()).collect();
    names.sort_unstable();
    let text = names.join(",");
    // FNV-1a: against a slip of the pen, not against malice.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markers_are_read() {
        assert_eq!(NodeStatus::parse(""), NodeStatus::Blank);
        assert_eq!(NodeStatus::parse("noticed ab"), NodeStatus::Noticed { list: "ab".to_owned() });
        let known = Membership {
            list: "ab".to_owned(),
            epoch: 3,
            longest: Duration::from_secs(30),
            ceiling: 77,
            since: 0,
        };
        assert_eq!(NodeStatus::parse("member ab 3 30000 77 5"), NodeStatus::Member(known.clone()));
        let joining = NodeStatus::parse("joining ab 3 30000 77 5 c0ffee- 1000000");
        assert_eq!(joining, NodeStatus::Joining(Membership { since: 1_000_000, ..known.clone() }));
        let restarted = NodeStatus::parse("restarted ab 3 30000 77 5 c0ffee+");
        assert_eq!(restarted, NodeStatus::Restarted(known));
        for odd in ["x", "member", "member ab", "member ab x 1 1", "member ab 1 1", "king ab 1 1 1"]
        {
            assert_eq!(NodeStatus::parse(odd), NodeStatus::Unknown, "{odd}");
        }
    }

    #[test]
    fn a_node_waits_for_the_longest_ttl_by_its_own_clock() {
        let NodeStatus::Joining(known) =
            NodeStatus::parse("joining ab 3 1000 77 5 c0ffee- 5000000")
        else {
            panic!("it is joining")
        };
        assert_eq!(known.left(5_000_000), Duration::from_millis(1_030));
        assert_eq!(known.left(4_000_000), Duration::from_millis(1_030));
        assert_eq!(known.left(6_030_000), Duration::ZERO);
    }

    /// Frozen: other versions compare it with what they find.
    #[test]
    fn a_list_has_one_hash_in_any_order() {
        let hash = list_hash(["a:1", "b:2", "c:3"].iter());
        assert_eq!(hash, list_hash(["c:3", "a:1", "b:2"].iter()));
        assert_ne!(hash, list_hash(["a:1", "b:2", "c:4"].iter()));
        assert_eq!(list_hash(["a"].iter()), "af63dc4c8601ec8c");
    }
}
