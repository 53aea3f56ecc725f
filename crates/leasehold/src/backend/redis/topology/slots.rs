//! Who has which slots of a cluster, as far as we know.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use super::replicas::Replicas;
use super::subscriptions::Subscriptions;
use crate::backend::redis::connection::Value;
use crate::backend::redis::error::unexpected;
use crate::backend::redis::keys::SLOTS;
use crate::backend::redis::script::{number, text};
use crate::backend::redis::session::Server;
use crate::backend::redis::url::Host;
use crate::error::Result;

/// One node: a connection for requests, one for messages, one that may be kept waiting.
pub(super) struct Node {
    pub(super) server: Arc<Server>,
    pub(super) subscriptions: Subscriptions,
    pub(super) replicas: Arc<Replicas>,
}

/// The nodes, and the slots they have.
#[derive(Default)]
pub(super) struct Slots {
    pub(super) nodes: HashMap<Host, Arc<Node>>,
    /// For each slot; empty until somebody told us.
    owners: Vec<Option<Arc<Node>>>,
    /// The epoch of the cluster at the node that told us, if any has.
    pub(super) epoch: Option<u64>,
    /// How many slots had a master then.
    covered: usize,
}

/// Which node has which slots, according to one of them.
#[derive(Debug)]
pub(super) struct Map {
    pub(super) ranges: Vec<(RangeInclusive<u16>, Host)>,
    /// It grows with every election, also with one that a node which is cut off cannot win, and
    /// with most moves of slots. A cluster that is set up anew begins again.
    pub(super) epoch: u64,
    /// Whether the node serves requests. One that is cut off from most masters does not, though
    /// it still tells who had which slots.
    pub(super) is_ok: bool,
}

impl Map {
    /// How many slots have a master.
    pub(super) fn covered(&self) -> usize {
        self.ranges.iter().map(|(range, _)| range.len()).sum()
    }

    pub(super) fn is_whole(&self) -> bool {
        self.covered() >= usize::from(SLOTS)
    }

    /// Whether to believe this map rather than another. A node that left the cluster knows of few
    /// slots or none; one that is cut off says so, whatever its epoch is; and one that was cut off
    /// until just now knows an older epoch.
    pub(super) fn is_better_than(&self, other: &Self) -> bool {
        let rank =
            |map: &Self| (map.covered() > 0, map.is_ok, map.is_whole(), map.epoch, map.covered());
        rank(self) > rank(other)
    }
}

impl Slots {
    pub(super) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.owners.get(usize::from(slot)).cloned().flatten()
    }

    /// The node for its host: the one that is known already, if there is one.
    pub(super) fn remember(&mut self, node: Arc<Node>) -> Arc<Node> {
        self.nodes.entry(node.server.host.clone()).or_insert(node).clone()
    }

    pub(super) fn moved(&mut self, slot: u16, to: &Arc<Node>) {
        if let Some(owner) = self.owners.get_mut(usize::from(slot)) {
            *owner = Some(to.clone());
        }
    }

    /// All nodes that have slots, each once.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        let mut masters: Vec<Arc<Node>> = Vec::new();
        for node in self.owners.iter().flatten() {
            if !masters.iter().any(|known| Arc::ptr_eq(known, node)) {
                masters.push(node.clone());
            }
        }
        masters
    }

    /// How many slots nobody has, according to the node that told us.
    pub(super) fn missing(&self) -> usize {
        usize::from(SLOTS).saturating_sub(self.covered)
    }

    /// Takes a node's word for it; whether a slot has another owner than it had. Of slots that it
    /// does not mention, what is known stays. Nodes that have none any more are forgotten, with
    /// their connections.
    pub(super) fn replace(
        &mut self,
        ranges: Vec<(RangeInclusive<u16>, Arc<Node>)>,
        epoch: u64,
    ) -> bool {
        self.epoch = Some(epoch);
        self.covered = ranges.iter().map(|(range, _)| range.len()).sum();
        let owners = owners_after(&self.owners, ranges);
        let changed = self.owners.iter().zip(&owners).any(|(before, after)| {
            matches!((before, after), (Some(before), Some(after)) if !Arc::ptr_eq(before, after))
        });
        self.owners = owners;
        let masters = self.masters();
        self.nodes.retain(|_, node| masters.iter().any(|master| Arc::ptr_eq(master, node)));
        changed
    }
}

/// Who has each slot, after a node said who has some or all of them.
fn owners_after<T: Clone>(
    known: &[Option<T>],
    said: Vec<(RangeInclusive<u16>, T)>,
) -> Vec<Option<T>> {
    let mut owners = known.to_vec();
    owners.resize(usize::from(SLOTS), None);
    for (range, node) in said {
        for slot in range {
            if let Some(owner) = owners.get_mut(usize::from(slot)) {
                *owner = Some(node.clone());
            }
        }
    }
    owners
}

/// What a node says to CLUSTER SLOTS and CLUSTER INFO.
pub(super) fn read_map(answers: &[Value], asked: &Host) -> Result<Map> {
    let [slots, info] = answers else { return Err(unexpected()) };
    let info = text(info)?;
    let epoch = info.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"));
    let epoch = epoch.and_then(|epoch| epoch.trim().parse().ok()).unwrap_or(0);
    let is_ok = !info.lines().any(|line| line.trim() == "cluster_state:fail");
    Ok(Map { ranges: read_slots(slots, asked)?, epoch, is_ok })
}

/// The masters in an answer to CLUSTER SLOTS. A node that does not know its own name is
/// called as we called it.
fn read_slots(answer: &Value, asked: &Host) -> Result<Vec<(RangeInclusive<u16>, Host)>> {
    let Value::Array(ranges) = answer else { return Err(unexpected()) };
    let read = |range: &Value| {
        let Value::Array(parts) = range else { return Err(unexpected()) };
        let [first, last, Value::Array(master), ..] = &parts[..] else { return Err(unexpected()) };
        let [name, port, ..] = &master[..] else { return Err(unexpected()) };
        let slot = |value| u16::try_from(number(value)?).map_err(|_| unexpected());
        let port = slot(port)?;
        let name = text(name).ok().filter(|name| !name.is_empty()).unwrap_or(&asked.name);
        Ok((slot(first)?..=slot(last)?, Host { name: name.to_owned(), port }))
    };
    ranges.iter().map(read).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(text: &str) -> Value {
        Value::Bytes(text.as_bytes().to_vec())
    }

    #[test]
    fn reads_what_nodes_say() {
        let asked = Host { name: "seed".to_owned(), port: 1 };
        let node = |name: Value, port| Value::Array(vec![name, Value::Int(port), word("id")]);
        let range = |first, last, node| {
            Value::Array(vec![Value::Int(first), Value::Int(last), node, Value::Nil])
        };
        let answer = Value::Array(vec![
            range(0, 99, node(word("10.0.0.1"), 7000)),
            range(100, 16383, node(Value::Nil, 7001)),
        ]);
        let read = read_slots(&answer, &asked).unwrap();
        let host = |name: &str, port| Host { name: name.to_owned(), port };
        assert_eq!(read[0], (0..=99, host("10.0.0.1", 7000)));
        assert_eq!(read[1], (100..=16383, host("seed", 7001)));
        assert!(read_slots(&Value::Array(vec![Value::Nil]), &asked).is_err());
    }

    #[test]
    fn the_whole_and_the_newest_map_is_believed() {
        let host = Host { name: "node".to_owned(), port: 1 };
        let map = |ranges: Vec<RangeInclusive<u16>>, epoch| Map {
            ranges: ranges.into_iter().map(|range| (range, host.clone())).collect(),
            epoch,
            is_ok: true,
        };
        let whole = map(vec![0..=99, 100..=16383], 7);
        assert!(whole.is_whole());
        // One that was removed may have an epoch of its own.
        let removed = map(Vec::new(), 9);
        let partial = map(vec![0..=16382], 8);
        let stale = map(vec![0..=16383], 6);
        for other in [&removed, &partial, &stale] {
            assert!(whole.is_better_than(other), "{other:?}");
            assert!(!other.is_better_than(&whole), "{other:?}");
        }
        assert!(partial.is_better_than(&removed) && !whole.is_better_than(&whole));
    }

    /// A replica that is cut off holds elections that it cannot win, and each has a new epoch.
    #[test]
    fn a_node_that_is_cut_off_is_not_believed() {
        let host = Host { name: "node".to_owned(), port: 1 };
        let map = |last, epoch, is_ok| Map { ranges: vec![(0..=last, host.clone())], epoch, is_ok };
        let cut_off = map(16383, 40, false);
        for served in [map(16383, 7, true), map(99, 7, true)] {
            assert!(served.is_better_than(&cut_off), "{served:?}");
            assert!(!cut_off.is_better_than(&served), "{served:?}");
        }
        let removed = Map { ranges: Vec::new(), epoch: 0, is_ok: true };
        assert!(cut_off.is_better_than(&removed), "it knows at least who had the slots");
    }

    #[test]
    fn what_a_map_does_not_mention_stays() {
        let whole = owners_after(&[], vec![(0..=99, 'a'), (100..=16383, 'b')]);
        assert_eq!(whole.len(), usize::from(SLOTS));
        let after = owners_after(&whole, vec![(50..=200, 'c')]);
        let owner = |slot: usize| after[slot];
        assert_eq!([owner(49), owner(50), owner(200), owner(201)], ['a', 'c', 'c', 'b'].map(Some));
        let partial = owners_after(&[], vec![(0..=9, 'a')]);
        assert_eq!((partial[9], partial[10]), (Some('a'), None));
    }

    #[test]
    fn reads_the_epoch_and_the_state() {
        let host = Host { name: "node".to_owned(), port: 1 };
        let info = word("cluster_state:ok\r\ncluster_current_epoch:12\r\ncluster_my_epoch:3\r\n");
        let map = read_map(&[Value::Array(Vec::new()), info], &host).unwrap();
        assert_eq!((map.epoch, map.covered(), map.is_ok), (12, 0, true));
        let info = word("cluster_state:fail\r\ncluster_current_epoch:13\r\n");
        let map = read_map(&[Value::Array(Vec::new()), info], &host).unwrap();
        assert_eq!((map.epoch, map.is_ok), (13, false));
    }
}
