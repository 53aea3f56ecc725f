//! What only an operator may do: go on after a majority of the nodes has lost its data.

use std::sync::Arc;

use super::super::redis::url::Settings;
use super::RedlockStore;
use super::mend::Next;
use super::standing::Standing;
use super::survey::{Step, Survey};
use super::{STORE, mend};
use crate::backend::{Finding, Severity};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};

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
    repairing.await.map_err(|error| error.on_store(STORE).during(Operation::Examine, None))
}

impl RedlockStore {
    async fn repair(self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        let mut forced = false;
        loop {
            let survey = self.step(&self.nodes, Step::Look).await;
            let voters = survey.members(&self.list).len();
            let knows = |standing: &Standing| {
                matches!(standing, Standing::Restarted(_) | Standing::Joining(_))
            };
            let others = survey.stands().filter(|(_, stand)| knows(&stand.standing)).count();
            let next = self.mend_once().await;
            match next {
                Next::Nothing => break,
                Next::Again(pause) => self.clock.sleep(pause).await,
                Next::Stuck if forced || voters + others == 0 => {
                    // Another list, or nodes that cannot be reached: nothing to go on from.
                    return Err(survey.verdicts(&self.list).no_majority());
                }
                Next::Stuck => {
                    self.start_anew(&survey).await?;
                    forced = true;
                    findings.push(Finding::new(
                        Severity::Warning,
                        format!("only {voters} of {} nodes had kept their data", self.nodes.len()),
                        "the others went on from what was still known and from the clocks: leases \
                         that only the lost data knew of were not waited for",
                    ));
                }
            }
        }
        let survey = self.step(&self.nodes, Step::Look).await;
        let voters = survey.members(&self.list).len();
        findings.push(Finding::new(
            Severity::Fine,
            format!("{voters} of {} nodes vote", self.nodes.len()),
            "",
        ));
        Ok(findings)
    }

    /// Goes on from the voters that are left, although they are no majority.
    async fn start_anew(&self, survey: &Survey) -> Result<()> {
        let reached = survey.stands().count();
        let strange = |standing: &Standing| {
            *standing == Standing::Unknown || standing.list().is_some_and(|list| list != self.list)
        };
        if reached < self.nodes.len() || survey.stands().any(|(_, stand)| strange(&stand.standing))
        {
            return Err(survey.verdicts(&self.list).no_majority());
        }
        let members = survey.members(&self.list);
        let known = survey.stands().filter_map(|(_, stand)| match &stand.standing {
            Standing::Member(known) | Standing::Joining(known) | Standing::Restarted(known) => {
                Some(known.epoch)
            }
            _ => None,
        });
        let epoch = known.max().unwrap_or(0) + 1;
        let voters = members.len();
        let empty: Vec<_> = survey
            .stands()
            .filter(|(_, stand)| !matches!(stand.standing, Standing::Member(_)))
            .map(|(node, _)| Arc::clone(node))
            .collect();
        self.install_with(survey, &empty, epoch, voters).await;
        // From here it is an ordinary recovery, but for the number of voters.
        loop {
            let survey = self.step(&self.nodes, Step::Look).await;
            if survey.members(&self.list).len() >= self.majority {
                return Ok(());
            }
            match self.recover(&survey, epoch).await {
                Next::Again(pause) => self.clock.sleep(pause.max(mend::SHORT)).await,
                Next::Nothing | Next::Stuck => {
                    let message = "nodes changed while they were repaired: look again with \
                                   `leasehold doctor`";
                    return Err(Error::new(ErrorKind::Unavailable, message));
                }
            }
        }
    }
}
