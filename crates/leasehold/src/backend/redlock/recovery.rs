//! Nodes that came back empty or with older data, and what brings them back.
//!
//! *Founding.* Where no node has ever had a marker, all nodes are given notice first, and
//! only when all have it, they begin to vote. A client that stops in between leaves either
//! no voter, or a list on which everybody has notice: the next one goes on.
//!
//! *Recovery.* A majority of voters is sealed with a new epoch, which ends what older
//! requests could still do; the nodes that lost data get the highest token of these and the
//! longest TTL ever granted; when that has passed by their own clocks, no lease of an older
//! epoch can be left, and they vote again. Any client can take over from any step.
//!
//! *Repair.* What is left to an operator: voters that are no majority any more.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::node::{Membership, Node, NodeStatus};
use super::script::NODE_STATUS;
use super::votes::{NodeVerdict, NodeVerdicts, lower_median, natural};
use super::{Failure, NAME, RedlockStore, Settings, Value, number, parts, text};
use crate::backend::Finding;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};

/// The pause after a step that did not bring a node back.
const PAUSE: Duration = Duration::from_millis(500);
/// The pause between two looks that have something to do.
const SHORT: Duration = Duration::from_millis(1);
/// How often nodes that do not agree are looked at again before a client is refused.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    /// Nothing: all nodes that answer vote.
    Nothing,
    /// Look again after this time.
    Again(Duration),
    /// Nothing that is safe without an operator.
    Stuck,
}

/// What nodes said to a step.
pub(super) struct Probe<'a> {
    store: &'a RedlockStore,
    /// Our wall clock before they were asked, in µs.
    asked: u64,
    pub(super) said: Vec<(&'a Arc<Node>, Result<Report, Failure>)>,
}

/// What a node said to a step.
pub(super) struct Report {
    /// Whether the step was taken.
    done: bool,
    /// What it is now.
    pub(super) status: NodeStatus,
    /// Its clock, in µs.
    pub(super) clock: u64,
}

impl<'a> Probe<'a> {
    /// The nodes that answered, and what they are.
    fn reports(&self) -> impl Iterator<Item = (&'a Arc<Node>, &Report)> {
        self.said.iter().filter_map(|(node, report)| Some((*node, report.as_ref().ok()?)))
    }

    /// How many nodes answered that they are this.
    fn count(&self, wanted: impl Fn(&NodeStatus) -> bool) -> usize {
        self.reports().filter(|(_, report)| wanted(&report.status)).count()
    }

    /// Whether a node is on another list, or strange altogether: nothing is done to it.
    fn has_strangers(&self) -> bool {
        let list = &self.store.list;
        self.count(|status| status.is_on_another(list) || *status == NodeStatus::Unknown) > 0
    }

    /// The voters of this list.
    pub(super) fn members(&self) -> Vec<(&'a Arc<Node>, &Membership)> {
        let members = self.reports().filter_map(|(node, report)| match &report.status {
            NodeStatus::Member(known) if known.list == self.store.list => Some((node, known)),
            _ => None,
        });
        members.collect()
    }

    /// The highest epoch in which a node votes.
    pub(super) fn epoch(&self) -> Option<u64> {
        self.members().iter().map(|(_, known)| known.epoch).max()
    }

    /// The lower median of the nodes' clocks.
    pub(super) fn clock(&self) -> Option<u64> {
        let mut clocks: Vec<_> = self.reports().map(|(_, report)| report.clock).collect();
        lower_median(&mut clocks)
    }

    /// The error that there is no majority.
    fn no_majority(&self) -> Error {
        let list = &self.store.list;
        let verdicts = self.said.iter().map(|(node, report)| {
            let verdict = match report.as_ref().map(|report| &report.status) {
                Err(failure) => NodeVerdict::of_failure(failure),
                Ok(NodeStatus::Member(known)) if known.list == *list => NodeVerdict::Granted,
                Ok(status) => NodeVerdict::of_status(status, list),
            };
            (node.name(), verdict)
        });
        NodeVerdicts(verdicts.collect()).no_majority()
    }
}

impl RedlockStore {
    /// Looks at all nodes.
    pub(super) async fn look(&self) -> Probe<'_> {
        self.step(&self.nodes, "look", &[]).await
    }

    /// Takes a step of `node_status.lua` at these nodes, with what it wants to know.
    async fn step<'a>(
        &'a self,
        nodes: impl IntoIterator<Item = &'a Arc<Node>>,
        step: &str,
        figures: &[u64],
    ) -> Probe<'a> {
        let asked = self.clock.wall_micros();
        let asking = nodes.into_iter().map(async |node| {
            let report = timeout(self.settings.timeout, self.step_at(node, step, figures)).await;
            (node, report.unwrap_or_else(|_| Err(Failure::silent())))
        });
        Probe { store: self, asked, said: join_all(asking).await }
    }

    async fn step_at(&self, node: &Node, step: &str, figures: &[u64]) -> Result<Report, Failure> {
        let live = node.server.live().await.map_err(Failure::NotSent)?;
        let mut call = self.call(&NODE_STATUS, 0);
        call.arg(step).arg(&self.list).arg(live.keeps);
        for figure in figures {
            call.arg(figure);
        }
        // On this very connection: another one may be to a server that keeps less.
        let mut answers = node.server.ask_all_on(live, &call.with_script()).await?;
        let read = |answer: &Value| {
            let [done, marker, clock] = parts(answer)?;
            let status = NodeStatus::parse(text(marker)?);
            Ok(Report { done: number(done)? == 1, status, clock: natural(clock)? })
        };
        read(&answers.pop().unwrap_or(Value::Nil)).map_err(Failure::Unanswered)
    }

    /// What a probe tells about epochs and clocks. An epoch never goes back: an old answer
    /// does not hide a newer one.
    fn learn(&self, probe: &Probe<'_>) {
        self.epoch.fetch_max(probe.epoch().unwrap_or(0), Ordering::AcqRel);
        if let Some(clock) = probe.clock() {
            self.learn_clock(clock, probe.asked);
        }
    }

    /// Makes sure that a majority votes; founds the store if no node ever has.
    pub(super) async fn join(&self) -> Result<()> {
        let patience = self.settings.timeout + self.settings.timeout;
        let until = self.clock.now() + patience;
        let mut stuck = 0;
        loop {
            let probe = self.look().await;
            self.learn(&probe);
            let foreign = probe.count(|status| status.is_on_another(&self.list)) > 0;
            let voters = probe.members().len();
            if voters >= self.majority && !foreign {
                if voters < self.nodes.len() {
                    // Here, not only in the background: all clients may be short-lived.
                    if probe.reports().count() > voters {
                        self.recover().await;
                    }
                    self.recovery_due.notify_one();
                }
                return Ok(());
            }
            let next = if foreign { Next::Stuck } else { self.recover().await };
            match next {
                Next::Nothing => {}
                Next::Again(pause) if self.clock.now() < until => {
                    self.clock.sleep(pause.min(patience)).await;
                }
                // Nodes are looked at one after the other: while another client founds the
                // store, what is seen of them may fit no step of it.
                Next::Stuck if !foreign && stuck < LOOKS => {
                    stuck += 1;
                    self.clock.sleep(BETWEEN_LOOKS).await;
                }
                Next::Again(_) | Next::Stuck => return Err(probe.no_majority()),
            }
        }
    }

    /// Does what can be done now.
    async fn recover(&self) -> Next {
        let probe = self.look().await;
        self.learn(&probe);
        if probe.has_strangers() {
            return Next::Stuck;
        }
        let members = probe.members();
        let epoch = probe.epoch().unwrap_or(0);
        if members.len() < self.majority {
            // Others may have been lost while some waited: these know all that was granted
            // before, and those that are left what was granted since.
            let joining = probe.reports().filter_map(|(_, report)| match &report.status {
                NodeStatus::Joining(known) => Some(known.epoch),
                _ => None,
            });
            return match joining.max() {
                Some(waiting) => self.recover_in(&probe, epoch.max(waiting)).await,
                None => self.found(&probe).await,
            };
        }
        let lagging = members.iter().filter(|(_, known)| known.epoch < epoch);
        let lagging: Vec<_> = lagging.map(|(node, _)| *node).collect();
        if !lagging.is_empty() {
            // A recovery stopped halfway, or passed them by.
            self.step(lagging, "seal", &[epoch]).await;
        }
        self.recover_in(&probe, epoch).await
    }

    /// Where there is no majority of voters: perhaps there has never been one.
    async fn found(&self, probe: &Probe<'_>) -> Next {
        let all = self.nodes.len();
        let noticed = |status: &NodeStatus| matches!(status, NodeStatus::Noticed { .. });
        let (members, told) = (probe.members().len(), probe.count(noticed));
        let blank = probe.count(|status| *status == NodeStatus::Blank);
        if members == 0 && blank + told == all {
            let probe = self.step(&self.nodes, "notice", &[]).await;
            if probe.count(noticed) + probe.members().len() < all {
                return Next::Again(PAUSE);
            }
        } else if members + told < all {
            return Next::Stuck;
        }
        let probe = self.step(&self.nodes, "found", &[]).await;
        self.learn(&probe);
        if probe.members().len() == all { Next::Nothing } else { Next::Again(PAUSE) }
    }

    /// Readmits nodes that have waited for long enough, and tells empty ones where to go on if
    /// there is a majority to learn it from.
    async fn recover_in(&self, probe: &Probe<'_>, epoch: u64) -> Next {
        let mut empty = Vec::new();
        let mut wait: Option<Duration> = None;
        let mut ready = Vec::new();
        for (node, report) in probe.reports() {
            match &report.status {
                NodeStatus::Joining(known) if known.epoch == epoch => {
                    let left = known.left(report.clock);
                    if left.is_zero() {
                        ready.push(node);
                    } else {
                        wait = Some(wait.map_or(left, |wait| wait.min(left)));
                    }
                }
                NodeStatus::Member(_) => {}
                _ => empty.push(node),
            }
        }
        let readmits = !ready.is_empty();
        if readmits {
            for (node, report) in self.step(ready, "readmit", &[epoch]).await.reports() {
                if report.done {
                    tracing::info!(node = %node.name(), epoch, "a redlock node votes again");
                }
            }
        }
        let finished = empty.is_empty();
        if !finished && probe.members().len() >= self.majority {
            return self.install(probe, empty, epoch + 1, self.majority).await;
        }
        match wait {
            Some(wait) => Next::Again(wait.max(SHORT)),
            None if readmits => Next::Again(SHORT),
            None if finished => Next::Nothing,
            None => Next::Stuck,
        }
    }

    /// Seals the voters, and tells empty nodes where to go on if so many voters are sealed.
    async fn install(
        &self,
        probe: &Probe<'_>,
        empty: Vec<&Arc<Node>>,
        epoch: u64,
        enough: usize,
    ) -> Next {
        let voters = probe.members().into_iter().map(|(node, _)| node);
        let sealed = self.step(voters, "seal", &[epoch]).await;
        self.learn(&sealed);
        let known = sealed.reports().filter_map(|(_, report)| match &report.status {
            NodeStatus::Member(known) if report.done => Some(known),
            _ => None,
        });
        let mut known: Vec<_> = known.collect();
        if known.len() < enough {
            return Next::Again(PAUSE);
        }
        // What the others still know may be old, but where an operator wants to go on without a
        // majority there may be nothing else.
        known.extend(probe.reports().filter_map(|(_, report)| match &report.status {
            NodeStatus::Restarted(known) | NodeStatus::Joining(known) => Some(known),
            _ => None,
        }));
        let highest = known.iter().map(|known| known.ceiling).max().unwrap_or(0);
        let floor = highest.max(probe.clock().unwrap_or(0)).max(sealed.clock().unwrap_or(0));
        let longest = known.iter().map(|known| known.longest).max().unwrap_or_default();
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let installed = self.step(empty, "install", &[epoch, longest, floor]).await;
        for (node, report) in installed.reports() {
            if report.done {
                tracing::warn!(node = %node.name(), epoch, longest_ttl_ms = longest,
                    "a redlock node may have lost data: it votes again after the longest TTL");
            }
        }
        Next::Again(SHORT)
    }

    async fn repair(self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let mut forced = false;
        loop {
            let probe = self.look().await;
            let voters = probe.members().len();
            let others = probe.count(|status| {
                matches!(status, NodeStatus::Restarted(_) | NodeStatus::Joining(_))
            });
            match self.recover().await {
                Next::Nothing => break,
                Next::Again(pause) => self.clock.sleep(pause).await,
                // Another list, or nodes that cannot be reached: nothing to go on from.
                Next::Stuck if forced || voters + others == 0 => return Err(probe.no_majority()),
                Next::Stuck => {
                    self.start_anew(&probe).await?;
                    forced = true;
                    findings.push(Finding::warning(
                        format!("only {voters} of {} nodes had kept their data", self.nodes.len()),
                        "the others went on from what was still known and from the clocks: leases \
                         that only the lost data knew of were not waited for",
                    ));
                }
            }
        }
        let voters = self.look().await.members().len();
        findings.push(Finding::fine(format!("{voters} of {} nodes vote", self.nodes.len())));
        Ok(findings)
    }

    /// Goes on from the voters that are left, although they are no majority.
    async fn start_anew(&self, probe: &Probe<'_>) -> Result<()> {
        if probe.reports().count() < self.nodes.len() || probe.has_strangers() {
            return Err(probe.no_majority());
        }
        let known = probe.reports().filter_map(|(_, report)| report.status.known());
        let epoch = known.map(|known| known.epoch).max().unwrap_or(0) + 1;
        let is_empty = |report: &Report| !matches!(report.status, NodeStatus::Member(_));
        let empty = probe.reports().filter(|(_, report)| is_empty(report)).map(|(node, _)| node);
        self.install(probe, empty.collect(), epoch, probe.members().len()).await;
        // From here it is an ordinary recovery, but for the number of voters.
        loop {
            let probe = self.look().await;
            if probe.members().len() >= self.majority {
                return Ok(());
            }
            match self.recover_in(&probe, epoch).await {
                Next::Again(pause) => self.clock.sleep(pause.max(SHORT)).await,
                Next::Nothing | Next::Stuck => {
                    let message = "nodes changed while they were repaired: look again with \
                                   `leasehold doctor`";
                    return Err(Error::new(ErrorKind::Unavailable, message).not_applied());
                }
            }
        }
    }
}

/// Brings nodes back for as long as the store lives, when it was noticed that this is due.
pub(super) async fn recover_when_due(store: Weak<RedlockStore>, due: Arc<tokio::sync::Notify>) {
    loop {
        due.notified().await;
        loop {
            let Some(store) = store.upgrade() else { return };
            // Many clients notice it at once: the first one may have done it by then.
            store.clock.sleep(Duration::from_millis(fastrand::u64(0..100))).await;
            let next = store.recover().await;
            let clock = store.clock.clone();
            drop(store);
            match next {
                Next::Again(pause) => clock.sleep(pause).await,
                Next::Nothing => break,
                Next::Stuck => {
                    clock.sleep(PAUSE).await;
                    break;
                }
            }
        }
    }
}

/// Brings back every node of this redlock that can be reached and does not vote, and waits
/// until it does.
///
/// Where a majority still votes this is what clients do by themselves. Where it does not, the
/// empty and restarted nodes go on from what is known and from the clocks: that is safe only
/// if no lease lives that only lost nodes knew of, and if the clocks were not set back. All
/// nodes must be reachable then.
///
/// # Errors
///
/// [`Refused`](ErrorKind::Refused) when nodes belong to another list,
/// [`Unreachable`](ErrorKind::Unreachable) when too many cannot be reached.
pub async fn repair(url: &str, clock: Clock) -> Result<Vec<Finding>> {
    let repairing = async {
        let store = RedlockStore::new(Settings::parse(url)?, clock)?;
        store.check_nodes().await?;
        store.repair().await
    };
    repairing.await.map_err(|error| error.on_store(NAME).during(Operation::Examine, None))
}
