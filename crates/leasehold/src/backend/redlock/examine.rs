//! What about the nodes is unsafe: for `doctor`, and for refusing it at once.

use std::sync::Arc;
use std::time::Duration;

use super::super::redis::examine::of_server;
use super::super::redis::info::Info;
use super::RedlockStore;
use super::standing::Standing;
use super::survey::{Step, Survey};
use crate::backend::{Finding, Severity};
use crate::error::Result;

/// A difference between clocks that deserves a word.
const NOTABLE_OFFSET: u64 = 1_000_000;
/// One beyond which nodes refuse guesses.
const FURTHEST: u64 = 3_600_000_000;

impl RedlockStore {
    pub(super) async fn findings(self: &Arc<Self>) -> Result<Vec<Finding>> {
        let survey = self.step(&self.nodes, Step::Look).await;
        let mut findings = vec![self.number_of_nodes(), self.voters(&survey)];
        let clock = survey.clock().unwrap_or(0);
        for (node, stand) in &survey.said {
            let name = node.name();
            let stand = match stand {
                Ok(stand) => stand,
                Err(failure) => {
                    let why = crate::Error::from(failure.clone());
                    findings.push(Finding::new(
                        Severity::Unsafe,
                        format!("{name}: not reached: {why}"),
                        "one more that fails may be one too many: start it, or mend the way to it",
                    ));
                    continue;
                }
            };
            findings.push(self.standing(&name, &stand.standing, &survey));
            findings.push(offset(&name, stand.clock, clock));
            let info = Info::ask(&node.server).await?;
            findings.extend(of_server(&node.server, &info).await.into_iter().map(|finding| {
                let what = format!("{name}: {}", finding.what);
                Finding::new(finding.severity, what, finding.advice)
            }));
        }
        Ok(findings)
    }

    fn number_of_nodes(&self) -> Finding {
        let count = self.nodes.len();
        let what = format!("{count} nodes, of which {} may fail", count - self.majority);
        match count % 2 {
            1 => Finding::fine(what),
            _ => Finding::new(
                Severity::Warning,
                what,
                "an even number tolerates no more than one less, and votes split more often: add \
                 or remove one",
            ),
        }
    }

    fn voters(&self, survey: &Survey) -> Finding {
        let members = survey.members(&self.list).len();
        let what = format!("{members} of {} nodes vote (list {})", self.nodes.len(), self.list);
        if members == self.nodes.len() {
            Finding::fine(what)
        } else if members >= self.majority {
            Finding::new(Severity::Warning, what, "see below for those that do not")
        } else {
            let advice = "no lock can be had: start the missing nodes; if the data of a majority \
                          is lost for good, `leasehold doctor --repair` starts anew";
            Finding::new(Severity::Unsafe, what, advice)
        }
    }

    fn standing(&self, name: &str, standing: &Standing, survey: &Survey) -> Finding {
        let highest = survey.members(&self.list).iter().map(|(_, known)| known.epoch).max();
        match standing {
            _ if standing.list().is_some_and(|list| list != self.list) => Finding::new(
                Severity::Unsafe,
                format!("{name}: it belongs to another list of nodes"),
                "two groups of clients that share some nodes exclude each other only by luck: \
                 write the same nodes in the same words in all URLs",
            ),
            Standing::Member(known) if Some(known.epoch) < highest => Finding::new(
                Severity::Warning,
                format!("{name}: it votes, but in the older epoch {}", known.epoch),
                "a recovery passed it by: the next client seals it",
            ),
            Standing::Member(known) => Finding::fine(format!(
                "{name}: it votes (epoch {}, longest TTL {} s)",
                known.epoch,
                known.longest.as_secs_f64()
            )),
            Standing::Joining(known) => Finding::new(
                Severity::Warning,
                format!("{name}: it had lost its data and waits in epoch {}", known.epoch),
                format!(
                    "it votes again when the longest TTL ever granted ({} s) has passed, if a \
                     client runs",
                    known.longest.as_secs_f64()
                ),
            ),
            Standing::Restarted(_) => Finding::new(
                Severity::Warning,
                format!("{name}: it was restarted, and may have come back with older data"),
                "a client that runs brings it back after the longest TTL, as long as a majority \
                 of the others votes; with appendonly yes and appendfsync always it votes at once",
            ),
            Standing::Blank | Standing::Noticed { .. } => Finding::new(
                Severity::Warning,
                format!("{name}: it has no marker: it is new, or has lost its data"),
                "a client that runs brings it back, as long as a majority of the others votes; \
                 set appendonly yes so that it keeps its data",
            ),
            Standing::Unknown => Finding::new(
                Severity::Unsafe,
                format!("{name}: its marker is not ours"),
                "another program writes this key, or a newer version of this one",
            ),
        }
    }
}

fn offset(name: &str, clock: u64, median: u64) -> Finding {
    let offset = clock.abs_diff(median);
    let seconds = Duration::from_micros(offset).as_secs_f64();
    if offset < NOTABLE_OFFSET {
        return Finding::fine(format!(
            "{name}: its clock differs by {:.0} ms from the others",
            seconds * 1e3
        ));
    }
    let (severity, advice) = if offset < FURTHEST {
        let advice = "leases do not compare clocks, but keys expire by them when they are set: run \
                      an NTP client";
        (Severity::Warning, advice)
    } else {
        let advice = "it refuses the tokens of the others, so that acquisitions take two round \
                      trips; and if its clock is set back by as much, tokens of idle locks may \
                      repeat there: run an NTP client";
        (Severity::Unsafe, advice)
    };
    Finding::new(
        severity,
        format!("{name}: its clock differs by {seconds:.1} s from the others"),
        advice,
    )
}
