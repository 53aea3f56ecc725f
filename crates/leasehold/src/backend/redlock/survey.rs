//! What each node is, as it says itself.

use std::sync::Arc;

use redis::Value;
use tokio::time::timeout;

use super::super::redis::error::Failure;
use super::super::redis::script::Call;
use super::super::redis::script::{items, number, text};
use super::RedlockStore;
use super::node::Node;
use super::script::STANDING;
use super::standing::{Membership, Standing};
use super::tally::{lower_median, natural};
use super::verdict::{NodeVerdict, NodeVerdicts};
use crate::error::{Error, Result};

/// A step in the life of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Only look.
    Look,
    /// A node that knows nothing hears of its list.
    Notice,
    /// A node that was given notice begins to vote.
    Found,
    /// A voter refuses older epochs from now on.
    Seal { epoch: u64 },
    /// A node that knows nothing is told where to go on.
    Install { epoch: u64, longest: u64, floor: u64 },
    /// It votes again.
    Readmit { epoch: u64 },
}

impl Step {
    fn word(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Notice => "notice",
            Self::Found => "found",
            Self::Seal { .. } => "seal",
            Self::Install { .. } => "install",
            Self::Readmit { .. } => "readmit",
        }
    }
}

/// What a node said to a step.
#[derive(Debug, Clone)]
pub(super) struct Stand {
    /// Whether the step was taken.
    pub(super) done: bool,
    /// What it is now.
    pub(super) standing: Standing,
    /// Its clock, in µs.
    pub(super) clock: u64,
}

/// What all nodes said.
#[derive(Debug)]
pub(super) struct Survey {
    /// Our wall clock before they were asked, in µs.
    pub(super) asked: u64,
    pub(super) said: Vec<(Arc<Node>, Result<Stand, Failure>)>,
}

impl RedlockStore {
    /// Takes a step at these nodes.
    pub(super) async fn step(&self, nodes: &[Arc<Node>], step: Step) -> Survey {
        let asked = self.clock.wall_micros();
        let asking = nodes.iter().map(|node| async {
            let stand = timeout(self.settings.timeout, self.step_at(node, step));
            (node.clone(), stand.await.unwrap_or_else(|_| Err(Failure::silent())))
        });
        Survey { asked, said: futures_util::future::join_all(asking).await }
    }

    async fn step_at(&self, node: &Node, step: Step) -> Result<Stand, Failure> {
        let live = node.server.live().await.map_err(Failure::NotSent)?;
        let mut call = Call::new(&STANDING, 0, 1);
        call.arg(&self.marker).arg(step.word()).arg(&self.list).arg(live.keeps);
        match step {
            Step::Look | Step::Notice | Step::Found => &mut call,
            Step::Seal { epoch } | Step::Readmit { epoch } => call.arg(epoch),
            Step::Install { epoch, longest, floor } => call.arg(epoch).arg(longest).arg(floor),
        };
        // On this very connection: another one may be to a server that keeps less.
        let mut answers = node.server.ask_all_on(live, &call.with_script()).await?;
        Stand::read(answers.pop().unwrap_or(Value::Nil)).map_err(Failure::Unanswered)
    }
}

impl Stand {
    fn read(answer: Value) -> Result<Self, Error> {
        let parts = items(answer, 3)?;
        Ok(Self {
            done: number(&parts[0])? == 1,
            standing: Standing::parse(text(&parts[1])?),
            clock: natural(&parts[2])?,
        })
    }
}

impl Survey {
    /// The nodes that answered, and what they are.
    pub(super) fn stands(&self) -> impl Iterator<Item = (&Arc<Node>, &Stand)> {
        self.said.iter().filter_map(|(node, stand)| Some((node, stand.as_ref().ok()?)))
    }

    /// The voters of this list.
    pub(super) fn members(&self, list: &str) -> Vec<(&Arc<Node>, &Membership)> {
        let members = self.stands().filter_map(|(node, stand)| match &stand.standing {
            Standing::Member(known) if known.list == list => Some((node, known)),
            _ => None,
        });
        members.collect()
    }

    /// What the nodes know that wait to vote again.
    pub(super) fn joining(&self) -> impl Iterator<Item = &Membership> {
        self.stands().filter_map(|(_, stand)| match &stand.standing {
            Standing::Joining(known) => Some(known),
            _ => None,
        })
    }

    /// The lower median of the nodes' clocks.
    pub(super) fn clock(&self) -> Option<u64> {
        let mut clocks: Vec<_> = self.stands().map(|(_, stand)| stand.clock).collect();
        lower_median(&mut clocks)
    }

    /// What every node said, for an error.
    pub(super) fn verdicts(&self, list: &str) -> NodeVerdicts {
        let verdicts = self.said.iter().map(|(node, stand)| {
            let verdict = match stand {
                Err(failure) => NodeVerdict::of_failure(failure),
                Ok(stand) => match &stand.standing {
                    Standing::Member(known) if known.list == list => NodeVerdict::Granted,
                    standing => NodeVerdict::of_standing(standing, list),
                },
            };
            (node.name(), verdict)
        });
        NodeVerdicts(verdicts.collect())
    }
}
