//! One session with ZooKeeper: what it proves, and when it is over.
//!
//! A lease lives as long as its session, which the leader ends when it has not heard of it
//! for its time-out. What proves that it lives is therefore a *write* that was answered:
//! reads and pings are answered by any server, also by one that lost its leader. And a
//! follower tells the leader of its clients only now and then: what counts is the ping
//! before the write, not the write itself. That is the session's `slack`.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::AbortHandle;
use zookeeper_client::{Client, Error as Zk, MultiWriteError, SessionState};

use super::error::{disconnected, of_request};
use super::line::Line;
use crate::backend::Proof;
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// A connection that is silent for this long is given up, whatever the TTL.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);

/// After how much silence a connection of a session with this time-out is given up.
pub(super) fn silence(timeout: Duration) -> Duration {
    (timeout * 2 / 5).min(LONGEST_SILENCE)
}

/// How much earlier than a write the leader may have heard of its session: the driver pings
/// after at most half of the longest silence, a follower reports every half tick.
pub(super) fn slack(timeout: Duration, tick: Duration) -> Duration {
    silence(timeout) / 2 + tick / 2
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

pub(super) struct Session {
    pub(super) client: Client,
    /// What was asked for: as long as the longest of its leases lasts, or a little longer.
    pub(super) timeout: Duration,
    /// In nanoseconds. It may turn out to be less than was thought.
    slack: AtomicU64,
    clock: Clock,
    /// When the last write was sent that was answered.
    proved: AtomicU64,
    /// When somebody was last seen to use it.
    used: AtomicU64,
    /// Locks whose line is watched.
    pub(super) lines: Mutex<HashMap<Arc<str>, Arc<Line>>>,
    /// When to look for nodes that nobody knows of.
    sweeps: Mutex<Vec<Moment>>,
    tasks: Mutex<Vec<AbortHandle>>,
}

impl Session {
    pub(super) fn new(
        client: Client,
        timeout: Duration,
        slack: Duration,
        clock: Clock,
        asked: Moment,
    ) -> Self {
        let slack = AtomicU64::new(nanos(slack));
        let proved = AtomicU64::new(asked.as_nanos());
        let used = AtomicU64::new(asked.as_nanos());
        let (lines, sweeps, tasks) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { client, timeout, slack, clock, proved, used, lines, sweeps, tasks }
    }

    /// Its number, as nodes name their owner.
    pub(super) fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// Whether it ended; nothing that it had is believed any more.
    pub(super) fn is_over(&self) -> bool {
        self.client.state().is_terminated()
    }

    pub(super) fn is_connected(&self) -> bool {
        self.client.state() == SessionState::SyncConnected
    }

    /// Before something is sent: the driver would keep it until there is a connection again.
    pub(super) fn check_connected(&self) -> Result<()> {
        if self.is_connected() { Ok(()) } else { Err(disconnected()) }
    }

    /// The same for what is worth a moment: a new connection is usually there at once.
    pub(super) async fn wait_connected(&self, limit: Duration) -> Result<()> {
        if self.is_connected() {
            return Ok(());
        }
        let connected = async {
            let mut states = self.client.state_watcher();
            // What changed before the watcher was made is seen here, what changes later there.
            while !self.is_connected() && !self.is_over() {
                states.changed().await;
            }
        };
        // Whether in time or not: what counts is how it is then.
        let _ = tokio::time::timeout(limit, connected).await;
        self.check_connected()
    }

    /// A write that was sent at this moment has been answered.
    pub(super) fn proved(&self, sent: Moment) -> Proof {
        self.proved.fetch_max(sent.as_nanos(), Ordering::SeqCst);
        self.proof_of(sent)
    }

    /// What is proved already.
    pub(super) fn proof(&self) -> Proof {
        self.proof_of(self.proved_at())
    }

    /// When the last write was sent that was answered, whatever the slack is.
    pub(super) fn proved_at(&self) -> Moment {
        Moment::from_nanos(self.proved.load(Ordering::SeqCst))
    }

    fn proof_of(&self, sent: Moment) -> Proof {
        Proof { at: sent - self.slack(), valid_for: self.timeout }
    }

    fn slack(&self) -> Duration {
        Duration::from_nanos(self.slack.load(Ordering::SeqCst))
    }

    /// More is known of the servers than when it was opened.
    pub(super) fn correct_slack(&self, slack: Duration) {
        self.slack.store(nanos(slack), Ordering::SeqCst);
    }

    pub(super) fn used(&self, now: Moment) {
        self.used.fetch_max(now.as_nanos(), Ordering::SeqCst);
    }

    pub(super) fn last_used(&self) -> Moment {
        Moment::from_nanos(self.used.load(Ordering::SeqCst))
    }

    /// How long ago it was proved. Without the slack, which no new proof makes shorter.
    pub(super) fn age_of_proof(&self) -> Duration {
        self.proved_at().until(self.clock.now())
    }

    /// Whether a lease of this TTL would last less than half as long as with a new proof.
    pub(super) fn is_proof_old(&self, ttl: Duration) -> bool {
        self.age_of_proof() > ttl.saturating_sub(self.slack()) / 2
    }

    /// Proves it again, by a write that changes nothing. Afterwards what this session reads
    /// is at least as new as what the leader had when it was asked.
    pub(super) async fn prove(&self, path: &str) -> Result<()> {
        self.check_connected()?;
        let sent = self.clock.now();
        let mut writer = self.client.new_multi_writer();
        writer.add_check_version(path, -1).map_err(of_request)?;
        match writer.commit().await {
            // A refusal has gone the same way as a success.
            Ok(_) | Err(MultiWriteError::OperationFailed { .. }) => {
                self.proved(sent);
                Ok(())
            }
            Err(MultiWriteError::RequestFailed { source }) => Err(of_request(source)),
        }
    }

    /// Deletes a node, if it is there; whether it was.
    pub(super) async fn delete(&self, path: &str) -> Result<bool> {
        self.check_connected()?;
        let sent = self.clock.now();
        let deleted = match self.client.delete(path, None).await {
            Ok(()) => true,
            Err(Zk::NoNode) => false,
            Err(error) => return Err(of_request(error)),
        };
        self.proved(sent);
        Ok(deleted)
    }

    /// The line of this lock, if we see all that happens there.
    pub(super) fn followed(&self, lock: &str) -> Option<Arc<Line>> {
        self.lines.lock().get(lock).filter(|line| line.is_up_to_date()).cloned()
    }

    /// Nodes of ours may appear that nobody knows of: look for them soon, and later again.
    pub(super) fn expect_strangers(&self) {
        let now = self.clock.now();
        let mut sweeps = self.sweeps.lock();
        for later in [200, 1_000, 5_000] {
            sweeps.push(now + Duration::from_millis(later));
        }
    }

    /// When to look for strangers next.
    pub(super) fn next_sweep(&self) -> Moment {
        self.sweeps.lock().iter().copied().min().unwrap_or(Moment::NEVER)
    }

    /// Whether it is time to look, which then counts as done.
    pub(super) fn take_sweep(&self, now: Moment) -> bool {
        let mut sweeps = self.sweeps.lock();
        let before = sweeps.len();
        sweeps.retain(|due| *due > now);
        sweeps.len() < before
    }

    /// A task that ends with this session.
    pub(super) fn adopt(&self, task: AbortHandle) {
        self.tasks.lock().push(task);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for task in self.tasks.get_mut().drain(..) {
            task.abort();
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &format_args!("{:#x}", self.id()))
            .field("state", &self.client.state())
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_slack_leaves_most_of_the_term() {
        let seconds = Duration::from_secs;
        assert_eq!(slack(seconds(30), seconds(2)), Duration::from_millis(3_500));
        for ttl in [1, 2, 3, 5, 10, 30, 600].map(seconds) {
            // The shortest time-out that servers allow is two ticks.
            assert!(slack(ttl, ttl / 2) < ttl / 2, "{ttl:?}");
        }
        assert_eq!(slack(seconds(3), Duration::from_millis(200)), Duration::from_millis(700));
    }
}
