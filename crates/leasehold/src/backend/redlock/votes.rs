//! What the nodes said, and what follows from it: on one claim, and on the items of a call.

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::ledger::owner_of;
use super::node::{NodeStatus, Said};
use super::poll::Poll;
use super::{Call, Failure, Record, RedlockStore, Value, bytes, left, number, unexpected};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HeldBy;

/// How often a call is repeated because nodes were in another epoch.
const EPOCHS: usize = 3;

/// What the nodes said to one claim.
#[derive(Debug, Default)]
pub(super) struct Votes {
    /// How many nodes have the lock for us, and stored our token.
    pub(super) stored: usize,
    /// How many nodes have the lock for us.
    pub(super) granted: usize,
    /// What others have at the other nodes that answered.
    taken: Vec<Taken>,
    /// The highest token that the nodes that granted know of.
    last: u64,
    clocks: Vec<u64>,
}

/// The lock at a node where another has it.
#[derive(Debug, Clone)]
struct Taken {
    node: usize,
    value: Vec<u8>,
    left: Option<Duration>,
    record: Value,
}

/// Where a vote stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Decision {
    /// Not enough answers yet.
    Open,
    /// A majority stored the guess.
    Won,
    /// A majority has the lock for us, without the guess.
    NeedsToken,
    /// There will be no majority.
    Lost,
}

impl Votes {
    /// A node's answer to the claim.
    pub(super) fn hear(&mut self, node: usize, answer: &Value, guess: u64) -> Result<()> {
        match answer {
            Value::Int(1) => {
                self.stored += 1;
                self.granted += 1;
                self.last = self.last.max(guess);
            }
            Value::Array(parts) => match &parts[..] {
                [Value::Int(1), last, clock] => {
                    self.granted += 1;
                    self.last = self.last.max(natural(last)?);
                    self.clocks.push(natural(clock)?);
                }
                [Value::Int(0), _, clock, left_for, value, record] => {
                    self.clocks.push(natural(clock)?);
                    let (value, left) = (bytes(value)?.to_vec(), left(number(left_for)?));
                    self.taken.push(Taken { node, value, left, record: record.clone() });
                }
                _ => return Err(unexpected()),
            },
            _ => return Err(unexpected()),
        }
        Ok(())
    }

    /// Where the vote stands when so many nodes may still answer.
    pub(super) fn decide(&self, pending: usize, majority: usize) -> Decision {
        let cannot_win = self.granted + pending < majority;
        if self.stored >= majority {
            Decision::Won
        } else if self.granted >= majority {
            Decision::NeedsToken
        } else if cannot_win && (pending == 0 || self.answered() >= majority) {
            // Not before it is known whether another has it, or nobody can say.
            Decision::Lost
        } else {
            Decision::Open
        }
    }

    /// A token above all that a majority has seen, and not behind the clocks of most.
    pub(super) fn next_token(&self, guess: u64) -> u64 {
        let mut clocks = self.clocks.clone();
        // Nodes that stored the guess told no clock, but found it credible. Without their voice
        // the one clock that is told may be the one that is wrong.
        clocks.resize(clocks.len() + self.stored, guess);
        self.last.max(lower_median(&mut clocks).unwrap_or(0)) + 1
    }

    /// The lower median of the clocks of a majority: a few that are far ahead do not count.
    pub(super) fn clock(&mut self, majority: usize) -> Option<u64> {
        if self.clocks.len() < majority {
            return None;
        }
        lower_median(&mut self.clocks)
    }

    /// How many nodes said anything about the lock.
    pub(super) fn answered(&self) -> usize {
        self.granted + self.taken.len()
    }

    /// Whether another has the lock at this node.
    pub(super) fn is_taken_at(&self, node: usize) -> bool {
        self.taken.iter().any(|taken| taken.node == node)
    }

    /// The holder, if one owner may have a majority when the silent nodes are with it.
    pub(super) fn holder(
        &self,
        silent: usize,
        majority: usize,
    ) -> Option<(HeldBy, Option<Duration>)> {
        let same =
            |one: &&Taken| self.taken.iter().filter(|other| other.value == one.value).count();
        let first = self.taken.iter().max_by_key(same)?;
        if same(&first) + silent < majority {
            return None;
        }
        let known = self.taken.iter().filter(|taken| taken.value == first.value);
        let known =
            known.filter_map(|taken| Record::of(&taken.record, &taken.value, owner_of)).next();
        let held_by = known.map_or_else(|| HeldBy::new(None, None), |known| known.held_by);
        Some((held_by, self.taken.iter().filter_map(|taken| taken.left).min()))
    }
}

pub(super) fn natural(value: &Value) -> Result<u64> {
    u64::try_from(number(value)?).map_err(|_| unexpected())
}

/// At least half of them are not below it, and one that is far ahead is not it.
pub(super) fn lower_median<T: Ord + Copy>(numbers: &mut [T]) -> Option<T> {
    numbers.sort_unstable();
    numbers.get(numbers.len().checked_sub(1)? / 2).copied()
}

/// One question to all nodes, and why some of them do not vote on it.
pub(super) struct Round<'a> {
    pub(super) store: &'a RedlockStore,
    said: Vec<NodeVerdict>,
    /// Whether asking again helps: only our epoch was behind.
    pub(super) stale: bool,
}

impl<'a> Round<'a> {
    pub(super) fn new(store: &'a RedlockStore) -> Self {
        Self { store, said: vec![NodeVerdict::TimedOut; store.nodes.len()], stale: false }
    }

    /// The next node that says something, and its answers to so many items if it votes.
    pub(super) async fn next(
        &mut self,
        poll: &mut Poll,
        items: RangeInclusive<usize>,
    ) -> Option<(usize, Option<Vec<Value>>)> {
        let (node, said) = poll.next().await?;
        match said {
            Said::Answers(given) if items.contains(&given.len()) => {
                self.said[node] = NodeVerdict::Granted;
                Some((node, Some(given)))
            }
            said => {
                let (verdict, stale) = self.store.note(&said);
                self.said[node] = verdict;
                self.stale |= stale;
                Some((node, None))
            }
        }
    }

    /// What every node said, but for those where another has the lock.
    pub(super) fn verdicts(&self, is_taken: impl Fn(usize) -> bool) -> NodeVerdicts {
        let verdicts = self.store.nodes.iter().zip(&self.said).map(|(node, said)| {
            let taken = is_taken(node.index);
            (node.name(), if taken { NodeVerdict::Taken } else { said.clone() })
        });
        NodeVerdicts(verdicts.collect())
    }
}

/// What the nodes answered to a call.
pub(super) struct Answers<'a> {
    /// For each node that did what was asked: an answer for each item.
    pub(super) given: Vec<Vec<Value>>,
    /// The same of earlier rounds, in epochs that are over.
    pub(super) earlier: Vec<Vec<Value>>,
    round: Round<'a>,
}

impl Answers<'_> {
    /// How many nodes said yes to an item.
    pub(super) fn yes(&self, item: usize) -> usize {
        self.given.iter().filter(|given| given.get(item) == Some(&Value::Int(1))).count()
    }

    /// Yes, no, or not known: where nodes are silent, they may be of either mind.
    pub(super) fn outcome(&self, item: usize) -> Option<bool> {
        let RedlockStore { nodes, majority, .. } = self.round.store;
        let yes = self.yes(item);
        let no = self.given.len() - yes;
        if yes >= *majority {
            Some(true)
        } else if nodes.len() - no < *majority {
            Some(false)
        } else {
            None
        }
    }

    /// Why it is not known what a majority says.
    pub(super) fn no_majority(&self) -> Error {
        self.round.verdicts(|_| false).no_majority().outcome_unknown()
    }
}

impl RedlockStore {
    /// Calls all nodes until there are `enough` answers, or nobody is left to answer. Again if
    /// too few vote because they are in another epoch: none of these calls takes a lock.
    pub(super) async fn consult(
        &self,
        call: impl Fn() -> Call,
        items: RangeInclusive<usize>,
        limit: Duration,
        enough: impl Fn(&Answers<'_>) -> bool,
    ) -> Answers<'_> {
        let mut earlier = Vec::new();
        let mut epochs = 1;
        loop {
            let mut answers = Answers { given: Vec::new(), earlier, round: Round::new(self) };
            let mut poll = Poll::new(&self.nodes, call(), limit);
            while let Some((_, given)) = answers.round.next(&mut poll, items.clone()).await {
                answers.given.extend(given);
                if enough(&answers) {
                    return answers;
                }
            }
            let few = answers.given.len() < self.majority;
            if !(answers.round.stale && few && epochs < EPOCHS) {
                return answers;
            }
            epochs += 1;
            earlier = answers.earlier;
            earlier.append(&mut answers.given);
        }
    }

    /// Why a node did not vote, and whether asking it again helps. Has it brought back if
    /// that helps.
    pub(super) fn note(&self, said: &Said) -> (NodeVerdict, bool) {
        let status = match said {
            Said::Answers(_) => {
                let why = "it answered what no script answers";
                return (NodeVerdict::Refused(why.to_owned()), false);
            }
            Said::Failed(failure) => return (NodeVerdict::of_failure(failure), false),
            Said::NoVote(status) => status,
        };
        let verdict = NodeVerdict::of_status(status, &self.list);
        let stale = match status {
            _ if verdict == NodeVerdict::OtherList => return (verdict, false),
            NodeStatus::Member(known) => {
                known.epoch >= self.epoch.fetch_max(known.epoch, Ordering::AcqRel)
            }
            _ => false,
        };
        if !stale {
            self.recovery_due.notify_one();
        }
        (verdict, stale)
    }
}

/// What one node said to a request, in a word.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum NodeVerdict {
    /// Yes.
    Granted,
    /// Another has the lock there.
    Taken,
    /// It did not answer in time.
    TimedOut,
    /// It could not be reached, or the connection ended before it answered; why.
    Unreachable(String),
    /// It refused; why.
    Refused(String),
    /// It has lost its data (or never had any) and does not vote.
    Amnesiac,
    /// It was restarted, perhaps with older data, and does not vote.
    Restarted,
    /// It was told where to go on, and waits until it may vote again.
    Joining,
    /// It belongs to another list of nodes.
    OtherList,
    /// It is in another epoch than this client: a recovery is under way.
    OtherEpoch,
}

impl fmt::Display for NodeVerdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Taken => f.write_str("taken"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Unreachable(why) => write!(f, "unreachable ({why})"),
            Self::Refused(why) => write!(f, "refused ({why})"),
            Self::Amnesiac => f.write_str("amnesiac"),
            Self::Restarted => f.write_str("restarted, perhaps with older data"),
            Self::Joining => f.write_str("joining"),
            Self::OtherList => f.write_str("on another list of nodes"),
            Self::OtherEpoch => f.write_str("in another epoch"),
        }
    }
}

impl NodeVerdict {
    pub(super) fn of_failure(failure: &Failure) -> Self {
        match failure {
            Failure::NotSent(error) | Failure::Unanswered(error) => {
                let mut why = error.to_string();
                if let Some(cause) = std::error::Error::source(error) {
                    why = format!("{why}: {cause}");
                }
                Self::Unreachable(why)
            }
            Failure::Refused(error) => Self::Refused(error.to_string()),
        }
    }

    /// Why a node of this status does not vote for a client with this list.
    pub(super) fn of_status(status: &NodeStatus, list: &str) -> Self {
        match status {
            _ if status.is_on_another(list) => Self::OtherList,
            NodeStatus::Blank | NodeStatus::Noticed { .. } => Self::Amnesiac,
            NodeStatus::Restarted(_) => Self::Restarted,
            NodeStatus::Joining(_) => Self::Joining,
            NodeStatus::Member(_) => Self::OtherEpoch,
            NodeStatus::Unknown => Self::Refused("its marker is not ours".to_owned()),
        }
    }
}

/// What every node said: the source of an error that no majority is behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeVerdicts(pub Vec<(String, NodeVerdict)>);

impl fmt::Display for NodeVerdicts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, (node, verdict)) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{node} {verdict}")?;
        }
        Ok(())
    }
}

impl std::error::Error for NodeVerdicts {}

impl NodeVerdicts {
    /// The error, and what to do about it.
    pub(super) fn no_majority(self) -> Error {
        let has = |wanted: fn(&NodeVerdict) -> bool| self.0.iter().any(|(_, said)| wanted(said));
        let (kind, advice) = if has(|said| *said == NodeVerdict::OtherList) {
            let advice = "all clients must name the same nodes, in the same words: compare the \
                          URLs, and see `leasehold doctor`";
            (ErrorKind::Refused, advice)
        } else if has(|said| matches!(said, NodeVerdict::Unreachable(_) | NodeVerdict::TimedOut)) {
            (ErrorKind::Unreachable, "start the missing nodes, or repair the network to them")
        } else if has(|said| matches!(said, NodeVerdict::Refused(_))) {
            (ErrorKind::Unusable, "see what the nodes say")
        } else {
            let advice = "nodes that came back empty or with older data vote again once no older \
                          lease can be left; if too many did, see `leasehold doctor --repair`";
            (ErrorKind::Unavailable, advice)
        };
        Error::new(kind, format!("no majority of the nodes agrees: {self}; {advice}"))
            .not_applied()
            .caused_by(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_clock_far_ahead_moves_no_token() {
        assert_eq!(lower_median(&mut [5, 9_000, 6]), Some(6));
        assert_eq!(lower_median(&mut [9_000, 5]), Some(5));
        assert_eq!(lower_median::<u64>(&mut []), None);
        let mut votes = Votes::default();
        for (node, clock) in [(0, 100), (1, 1_000_000), (2, 101)] {
            let answer = Value::Array(vec![Value::Int(1), Value::Int(7), Value::Int(clock)]);
            votes.hear(node, &answer, 0).unwrap();
        }
        assert_eq!(votes.decide(0, 2), Decision::NeedsToken);
        assert_eq!(votes.next_token(0), 102);
    }

    /// Who stored the guess says no more than that; the other one's clock must not decide.
    #[test]
    fn the_only_clock_that_is_told_is_not_believed() {
        let mut votes = Votes::default();
        votes.hear(0, &Value::Int(1), 100).unwrap();
        let ahead = Value::Array(vec![Value::Int(1), Value::Int(105), Value::Int(1_000_000)]);
        votes.hear(1, &ahead, 100).unwrap();
        assert_eq!(votes.decide(1, 2), Decision::NeedsToken);
        assert_eq!(votes.next_token(100), 106);
        assert_eq!(votes.clock(2), None);
    }

    #[test]
    fn a_vote_is_decided_as_soon_as_it_can_be() {
        let mut votes = Votes::default();
        assert_eq!(votes.decide(5, 3), Decision::Open);
        assert_eq!(votes.decide(2, 3), Decision::Open, "they may say who has it");
        assert_eq!(votes.decide(0, 3), Decision::Lost);
        for node in 0..3 {
            votes.hear(node, &Value::Int(1), 9).unwrap();
        }
        assert_eq!(votes.decide(2, 3), Decision::Won);
        assert_eq!(votes.next_token(9), 10);
    }
}
