//! Nodes that came back empty or with older data, and what brings them back without an operator.
//!
//! *Founding.* Where no node has ever had a marker, all nodes are given notice first, and
//! only when all have it, they begin to vote. A client that stops in between leaves either
//! no voter, or a list on which everybody has notice: the next one goes on.
//!
//! *Recovery.* A majority of voters is sealed with a new epoch, which ends what older
//! requests could still do; the nodes that lost data get the highest token of these and
//! the longest TTL ever granted; when that has passed by their own clocks, no lease of an older epoch can be left,
//! and they vote again. Any client can take over from any step.
//!
//! What is left to an operator: voters that are no majority any more.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::RedlockStore;
use super::node::Node;
use super::standing::Standing;
use super::survey::{Step, Survey};

/// The pause after a step that did not bring a node back.
const PAUSE: Duration = Duration::from_millis(500);

/// The pause between two looks that have something to do.
pub(super) const SHORT: Duration = Duration::from_millis(1);

/// What is to be done next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// Nothing: all nodes that answer vote.
    Nothing,
    /// Look again after this time.
    Again(Duration),
    /// Nothing that is safe without an operator.
    Stuck,
}

/// Mends for as long as the store lives, when somebody noticed that there is something.
pub(super) async fn mend(store: Weak<RedlockStore>, nudged: Arc<tokio::sync::Notify>) {
    loop {
        nudged.notified().await;
        loop {
            let Some(store) = store.upgrade() else { return };
            // Many clients notice it at once: the first one may have done it by then.
            store.clock.sleep(Duration::from_millis(fastrand::u64(0..100))).await;
            let next = store.mend_once().await;
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

impl RedlockStore {
    /// Does what can be done now.
    pub(super) async fn mend_once(&self) -> Next {
        let survey = self.step(&self.nodes, Step::Look).await;
        self.learn(&survey);
        let foreign = |standing: &Standing| {
            standing.list().is_some_and(|list| list != self.list) || *standing == Standing::Unknown
        };
        if survey.stands().any(|(_, stand)| foreign(&stand.standing)) {
            return Next::Stuck;
        }
        let members = survey.members(&self.list);
        let epoch = members.iter().map(|(_, known)| known.epoch).max().unwrap_or(0);
        if members.len() < self.majority {
            // Others may have been lost while some waited: these know all that was granted
            // before, and those that are left what was granted since.
            return match survey.joining().map(|known| known.epoch).max() {
                Some(waiting) => self.recover(&survey, epoch.max(waiting)).await,
                None => self.found(&survey).await,
            };
        }
        let lagging: Vec<_> = members
            .iter()
            .filter(|(_, known)| known.epoch < epoch)
            .map(|(node, _)| Arc::clone(node))
            .collect();
        if !lagging.is_empty() {
            // A recovery stopped halfway, or passed them by.
            self.step(&lagging, Step::Seal { epoch }).await;
        }
        self.recover(&survey, epoch).await
    }

    /// Where there is no majority of voters: perhaps there has never been one.
    async fn found(&self, survey: &Survey) -> Next {
        let members = survey.members(&self.list).len();
        let stands: Vec<_> = survey.stands().collect();
        let noticed = |standing: &Standing| matches!(standing, Standing::Noticed { .. });
        let told = stands.iter().filter(|(_, stand)| noticed(&stand.standing)).count();
        let blank = stands.iter().filter(|(_, stand)| stand.standing == Standing::Blank).count();
        if members == 0 && blank + told == self.nodes.len() {
            let survey = self.step(&self.nodes, Step::Notice).await;
            let told = survey.stands().filter(|(_, stand)| noticed(&stand.standing)).count();
            let begun = survey.members(&self.list).len();
            if told + begun < self.nodes.len() {
                return Next::Again(PAUSE);
            }
        } else if members + told < self.nodes.len() {
            return Next::Stuck;
        }
        let survey = self.step(&self.nodes, Step::Found).await;
        self.learn(&survey);
        match survey.members(&self.list).len() == self.nodes.len() {
            true => Next::Nothing,
            false => Next::Again(PAUSE),
        }
    }

    /// Readmits nodes that have waited for long enough, and tells empty ones where to go on if
    /// there is a majority to learn it from.
    pub(super) async fn recover(&self, survey: &Survey, epoch: u64) -> Next {
        let mut empty: Vec<Arc<Node>> = Vec::new();
        let mut wait: Option<Duration> = None;
        let mut ready = Vec::new();
        for (node, stand) in survey.stands() {
            match &stand.standing {
                Standing::Joining(known) if known.epoch == epoch => {
                    let left = known.left(stand.clock);
                    if left.is_zero() {
                        ready.push(node.clone());
                    } else {
                        wait = Some(wait.map_or(left, |wait| wait.min(left)));
                    }
                }
                Standing::Member(_) => {}
                _ => empty.push(node.clone()),
            }
        }
        if !ready.is_empty() {
            for (node, stand) in self.step(&ready, Step::Readmit { epoch }).await.stands() {
                if stand.done {
                    tracing::info!(node = %node.name(), epoch, "a redlock node votes again");
                }
            }
        }
        let majority = survey.members(&self.list).len() >= self.majority;
        if majority && !empty.is_empty() {
            return self.install(survey, &empty, epoch + 1).await;
        }
        match wait {
            Some(wait) => Next::Again(wait.max(SHORT)),
            None if !ready.is_empty() => Next::Again(SHORT),
            None if empty.is_empty() => Next::Nothing,
            None => Next::Stuck,
        }
    }

    /// Seals the voters, and tells empty nodes where to go on.
    async fn install(&self, survey: &Survey, empty: &[Arc<Node>], epoch: u64) -> Next {
        self.install_with(survey, empty, epoch, self.majority).await
    }

    /// The same when so many voters are enough, which an operator may say.
    pub(super) async fn install_with(
        &self,
        survey: &Survey,
        empty: &[Arc<Node>],
        epoch: u64,
        enough: usize,
    ) -> Next {
        let voters: Vec<_> =
            survey.members(&self.list).into_iter().map(|(node, _)| node.clone()).collect();
        let sealed = self.step(&voters, Step::Seal { epoch }).await;
        self.learn(&sealed);
        let known: Vec<_> = sealed
            .stands()
            .filter_map(|(_, stand)| match &stand.standing {
                Standing::Member(known) if stand.done => Some(known),
                _ => None,
            })
            .collect();
        if known.len() < enough {
            return Next::Again(PAUSE);
        }
        // What the others still know may be old, but where an operator wants to go on without a
        // majority there may be nothing else.
        let older = survey.stands().filter_map(|(_, stand)| match &stand.standing {
            Standing::Restarted(known) | Standing::Joining(known) => Some(known),
            _ => None,
        });
        let known: Vec<_> = known.into_iter().chain(older).collect();
        let highest = known.iter().map(|known| known.ceiling).max().unwrap_or(0);
        let floor = highest.max(survey.clock().unwrap_or(0)).max(sealed.clock().unwrap_or(0));
        let longest = known.iter().map(|known| known.longest).max().unwrap_or_default();
        let longest = u64::try_from(longest.as_millis()).unwrap_or(u64::MAX);
        let step = Step::Install { epoch, longest, floor };
        for (node, stand) in self.step(empty, step).await.stands() {
            if stand.done {
                tracing::warn!(node = %node.name(), epoch, longest_ttl_ms = longest,
                    "a redlock node may have lost data: it votes again after the longest TTL");
            }
        }
        Next::Again(SHORT)
    }
}
