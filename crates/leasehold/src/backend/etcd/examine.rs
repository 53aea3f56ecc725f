//! What `doctor` shows of an etcd cluster.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use etcd_client::{AlarmAction, AlarmType, StatusResponse};

use super::EtcdStore;
use super::error::explain;
use crate::backend::{Finding, Severity};
use crate::error::{Error, Result};

/// etcd's own default, where a member does not say what its quota is.
const DEFAULT_QUOTA: i64 = 2 << 30;
/// How long one question may take.
const LIMIT: Duration = Duration::from_secs(1);
/// A majority that takes longer to agree makes every lock slow.
const SLOW: Duration = Duration::from_millis(100);

impl EtcdStore {
    pub(super) async fn findings(&self) -> Result<Vec<Finding>> {
        let mut findings = self.members().await?;
        let members = self.endpoints.urls().enumerate();
        let asked = members.map(async |(index, url)| (url, self.status(index).await));
        let mut versions = BTreeSet::new();
        for (url, status) in futures_util::future::join_all(asked).await {
            match status {
                Ok(status) => {
                    findings.push(member(url, &status));
                    versions.insert(status.version().to_owned());
                }
                Err(error) => findings.push(warning(
                    format!("{url} does not answer: {error}"),
                    "the cluster bears the loss of fewer than half of its members: repair it",
                )),
            }
        }
        findings.extend(versions.iter().map(|version| of_version(version)));
        findings.extend(self.alarms().await?);
        findings.push(self.latency().await?);
        Ok(findings)
    }

    async fn members(&self) -> Result<Vec<Finding>> {
        let listing = self.endpoints.call(async |mut etcd| etcd.member_list().await).await?;
        let voters = listing.members().iter().filter(|member| !member.is_learner()).count();
        let named = self.endpoints.count();
        let mut findings = vec![of_voters(voters)];
        if named < voters {
            findings.push(warning(
                format!("the store's URL names {named} of {voters} members"),
                "name all of them, so that the loss of one does not cut this client off",
            ));
        }
        Ok(findings)
    }

    async fn status(&self, member: usize) -> Result<StatusResponse> {
        let asking = async { self.endpoints.client_of(member).await?.status().await };
        match tokio::time::timeout(LIMIT, asking).await {
            Ok(status) => status.map_err(explain),
            Err(_) => Err(Error::no_answer(LIMIT)),
        }
    }

    async fn alarms(&self) -> Result<Vec<Finding>> {
        let asking = self
            .endpoints
            .call(async |mut etcd| etcd.alarm(AlarmAction::Get, AlarmType::None, None).await);
        let raised = asking.await?;
        let described = raised.alarms().iter().map(|alarm| match alarm.alarm() {
            AlarmType::Nospace => warning(
                format!("alarm NOSPACE on member {:x}", alarm.member_id()),
                "no lock can be taken: compact, defragment, then `etcdctl alarm disarm`",
            ),
            AlarmType::Corrupt => Finding::new(
                Severity::Unsafe,
                format!("alarm CORRUPT on member {:x}", alarm.member_id()),
                "its data differs from the others': replace the member",
            ),
            AlarmType::None => warning("an alarm of an unknown kind".to_owned(), "look at it"),
        });
        Ok(described.collect())
    }

    /// How long the majority takes to agree on a read.
    async fn latency(&self) -> Result<Finding> {
        let mut took = Vec::new();
        for _ in 0..3 {
            let began = Instant::now();
            let probe = self.layout.probe();
            self.endpoints.on_keys(async |mut kv| kv.get(probe, None).await).await?;
            took.push(began.elapsed());
        }
        took.sort_unstable();
        let median = took[took.len() / 2];
        let what = format!("the leader answers within {:.1} ms", median.as_secs_f64() * 1e3);
        Ok(match median < SLOW {
            true => fine(what),
            false => warning(what, "look at the disks' fsync and the network between members"),
        })
    }
}

fn of_voters(voters: usize) -> Finding {
    let what = format!("{voters} voting {}", if voters == 1 { "member" } else { "members" });
    match voters {
        1 => warning(what, "its loss stops every lock: run three"),
        even if even % 2 == 0 => {
            warning(what, "an even number bears no more losses than one fewer does")
        }
        _ => fine(what),
    }
}

fn member(url: &str, status: &StatusResponse) -> Finding {
    if status.leader() == 0 {
        let advice = "it is cut off from the majority, which its clients cannot reach through it";
        return warning(format!("{url} has no leader"), advice);
    }
    let quota = Some(status.db_size_quota()).filter(|quota| *quota > 0).unwrap_or(DEFAULT_QUOTA);
    let (size, quota_mb) = (status.db_size() >> 20, quota >> 20);
    let what = format!("{url}: {size} MiB of {quota_mb} MiB used");
    // Four fifths, without overflow.
    if status.db_size() / 4 > quota / 5 {
        let advice = "beyond its quota no lock can be taken: turn on automatic compaction and \
                      defragment it";
        return warning(what, advice);
    }
    fine(what)
}

/// Versions with bugs that can cost a lock or a token.
fn of_version(version: &str) -> Finding {
    let what = format!("etcd {version}");
    let mut parts = version.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    let version: (u32, u32, u32) = (next(), next(), next());
    let bug = match version {
        (..=2, ..) | (3, ..=3, _) => "too old: its watches cannot be told apart",
        (3, 4, ..=21) | (3, 5, ..=5) => {
            "can lose or fork what it acknowledged (etcd#13766, #14370, #14685): take 3.4.32, \
             3.5.14 or later"
        }
        (3, 4, ..=31) | (3, 5, ..=13) => {
            "a leader that was paused ends sessions that are alive (etcd#15247), and a crash while \
             compacting can take the revision back (etcd#17865): take 3.4.32, 3.5.14 or later"
        }
        _ => return fine(what),
    };
    Finding::new(Severity::Unsafe, what, bug)
}

fn fine(what: String) -> Finding {
    Finding::new(Severity::Fine, what, "")
}

fn warning(what: String, advice: &str) -> Finding {
    Finding::new(Severity::Warning, what, advice)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_known_bugs_are_found() {
        for version in
            ["2.3.8", "3.3.27", "3.4.0", "3.4.21", "3.4.31", "3.5.0", "3.5.13", "3.5.2-rc.1"]
        {
            assert_eq!(of_version(version).severity, Severity::Unsafe, "{version}");
        }
        for version in ["3.4.32", "3.4.37", "3.5.14", "3.5.21", "3.6.0", "4.0.0"] {
            assert_eq!(of_version(version).severity, Severity::Fine, "{version}");
        }
    }

    #[test]
    fn members_are_counted() {
        let severities = [1, 2, 3, 4, 5].map(|voters| of_voters(voters).severity);
        use Severity::{Fine, Warning};
        assert_eq!(severities, [Warning, Warning, Fine, Warning, Fine]);
    }
}
