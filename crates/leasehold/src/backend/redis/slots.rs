//! Who has which slots of a cluster, as far as we know.

use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use redis::Value;

use super::answer::{number, text};
use super::cluster::Node;
use super::error::unexpected;
use super::keys::SLOTS;
use super::url::Host;
use crate::error::Result;

/// The nodes, and the slots they have.
#[derive(Debug, Default)]
pub(super) struct Slots {
    nodes: HashMap<Host, Arc<Node>>,
    /// For each slot; empty until somebody told us.
    owners: Vec<Option<Arc<Node>>>,
}

impl Slots {
    pub(super) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        self.owners.get(usize::from(slot)).cloned().flatten()
    }

    pub(super) fn known(&self, host: &Host) -> Option<Arc<Node>> {
        self.nodes.get(host).cloned()
    }

    /// The node for its host: the one that is known already, if there is one.
    pub(super) fn remember(&mut self, node: Arc<Node>) -> Arc<Node> {
        self.nodes.entry(node.server.host.clone()).or_insert(node).clone()
    }

    pub(super) fn hosts(&self) -> Vec<Host> {
        self.nodes.keys().cloned().collect()
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

    /// How many slots nobody has.
    pub(super) fn missing(&self) -> usize {
        usize::from(SLOTS) - self.owners.iter().flatten().count()
    }

    /// Takes the nodes' word for it; whether a slot has another owner than it had. Nodes
    /// that have none any more are forgotten, with their connections.
    pub(super) fn replace(&mut self, ranges: Vec<(RangeInclusive<u16>, Arc<Node>)>) -> bool {
        let mut owners: Vec<Option<Arc<Node>>> = vec![None; usize::from(SLOTS)];
        for (range, node) in ranges {
            for slot in range {
                if let Some(owner) = owners.get_mut(usize::from(slot)) {
                    *owner = Some(node.clone());
                }
            }
        }
        let changed =
            self.owners.iter().zip(&owners).any(|(before, after)| match (before, after) {
                (Some(before), Some(after)) => !Arc::ptr_eq(before, after),
                (Some(_), None) => true,
                (None, _) => false,
            });
        self.owners = owners;
        let masters = self.masters();
        self.nodes.retain(|_, node| masters.iter().any(|master| Arc::ptr_eq(master, node)));
        changed
    }
}

/// The masters in an answer to CLUSTER SLOTS. A node that does not know its own name is
/// called as we called it.
pub(super) fn read_slots(answer: &Value, asked: &Host) -> Result<Vec<(RangeInclusive<u16>, Host)>> {
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
        Value::BulkString(text.as_bytes().to_vec())
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
}
