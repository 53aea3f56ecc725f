//! Questions that a majority has to answer, one verdict for each item.

use std::sync::Arc;
use std::time::Duration;

use redis::Value;

use super::super::redis::script::Call;
use super::RedlockStore;
use super::node::{Given, Node, Said};
use super::poll::Poll;
use super::verdict::{NodeVerdict, NodeVerdicts};
use crate::error::Error;

/// How often a call is repeated because nodes were in another epoch.
const EPOCHS: usize = 3;

/// What the nodes answered to a call.
pub(super) struct Answers {
    /// For each node that did what was asked: an answer for each item.
    pub(super) given: Vec<Given>,
    said: Vec<Option<NodeVerdict>>,
}

impl Answers {
    /// How many nodes answered this to an item.
    pub(super) fn count(&self, item: usize, wanted: impl Fn(&Value) -> bool) -> usize {
        self.given.iter().filter(|answers| answers.get(item).is_some_and(&wanted)).count()
    }

    /// Why there is no verdict.
    pub(super) fn no_majority(self, nodes: &[Arc<Node>]) -> Error {
        let said = self.said.into_iter().map(|said| said.unwrap_or(NodeVerdict::TimedOut));
        let names = nodes.iter().map(|node| node.name());
        NodeVerdicts(names.zip(said).collect()).no_majority().outcome_unknown()
    }
}

impl RedlockStore {
    /// Calls all nodes until `decided` says that it has enough (it is told what was given and
    /// how many may still answer), or nobody is left to answer. Again if nodes were in another
    /// epoch: none of these calls takes a lock.
    pub(super) async fn consult(
        self: &Arc<Self>,
        call: impl Fn() -> Call,
        items: usize,
        limit: Duration,
        decided: impl Fn(&Answers, usize) -> bool,
    ) -> Answers {
        let mut answers = Answers { given: Vec::new(), said: Vec::new() };
        for round in 1..=EPOCHS {
            answers.given.clear();
            answers.said = vec![None; self.nodes.len()];
            let mut stale = false;
            let mut poll = Poll::new(&self.nodes, call(), limit);
            while let Some((node, heard)) = poll.next().await {
                match heard {
                    Said::Answers(given) if given.len() == items => {
                        answers.said[node] = Some(NodeVerdict::Granted);
                        answers.given.push(given);
                    }
                    heard => stale |= self.note(node, &heard, &mut answers.said),
                }
                if decided(&answers, poll.pending()) {
                    return answers;
                }
            }
            if !stale || round == EPOCHS {
                break;
            }
        }
        answers
    }
}
