//! One session with ZooKeeper: what it proves, and when it is over.
//!
//! A lease lives as long as its session, which the leader ends when it has not heard of it
//! for its time-out. What proves that it lives is therefore a *write* that was answered:
//! reads and pings are answered by any server, also by one that lost its leader. And a
//! follower tells the leader of its clients only now and then: what counts is the ping
//! before the write, not the write itself. That is the session's `slack`.

use std::collections::HashMap;
use std::fmt;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use zookeeper_client::{Client, MultiWriteError, SessionState, TlsOptions};

use super::error::{found, of_connecting, of_request};
use super::queue::Queue;
use super::url::Target;
use crate::backend::Proof;
use crate::backend::kit::url::TlsFiles;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// How long opening a session may take, all servers together.
const OPENING: Duration = Duration::from_secs(5);
/// How long a request waits for a connection that just broke.
pub(super) const A_MOMENT: Duration = Duration::from_millis(500);
/// A connection that is silent for this long is given up, whatever the TTL.
const LONGEST_SILENCE: Duration = Duration::from_secs(5);
/// The longest time-out that the protocol can carry.
pub(super) const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);
/// The first digits of the time-outs that sessions have, in milliseconds. A TTL in between has a
/// session that lasts longer, by a quarter at most: so much later a crashed client's locks are free.
const STEPS: [u64; 13] = [100, 125, 150, 180, 200, 250, 300, 350, 400, 500, 600, 700, 800];

/// The time-out of the session for this TTL, in milliseconds.
pub(super) fn timeout_for(ttl: Duration) -> Result<u64> {
    if ttl > LONGEST {
        let message = format!("ZooKeeper cannot keep a session for {ttl:?}; use a shorter TTL");
        return Err(Error::invalid(message));
    }
    let millis = ttl.as_nanos().div_ceil(1_000_000) as u64;
    if millis < STEPS[0] {
        return Ok(millis);
    }
    let mut steps = (0..).flat_map(|power| STEPS.map(|digits| digits * 10_u64.pow(power)));
    let step = steps.find(|step| *step >= millis).unwrap_or(millis);
    Ok(step.min(LONGEST.as_millis() as u64))
}

/// After how much silence a connection of a session with this time-out is given up.
fn silence(timeout: Duration) -> Duration {
    (timeout * 2 / 5).min(LONGEST_SILENCE)
}

/// How much earlier than a write the leader may have heard of its session: the driver pings
/// after at most half of the longest silence, a follower reports every half tick.
pub(super) fn slack(timeout: Duration, tick: Duration) -> Duration {
    silence(timeout) / 2 + tick / 2
}

/// Opens a session, without what follows it.
pub(super) async fn connect(target: &Target, asked: Duration) -> Result<Client> {
    let mut connector = Client::connector()
        .with_session_timeout(asked)
        .with_connection_timeout(silence(asked))
        .with_fail_eagerly();
    if let Some(digest) = &target.digest {
        connector = connector.with_auth("digest", digest.as_bytes());
    }
    let cluster = target.cluster();
    let connecting = async {
        match &target.tls {
            Some(files) => connector.with_tls(options(files)?).secure_connect(&cluster).await,
            None => connector.connect(&cluster).await,
        }
        .map_err(of_connecting)
    };
    timeout(OPENING, connecting).await.unwrap_or_else(|_| {
        let message = format!("no ZooKeeper server opened a session within {OPENING:?}");
        Err(Error::new(ErrorKind::Unreachable, message).not_applied())
    })
}

fn options(files: &TlsFiles) -> Result<TlsOptions> {
    // The driver brings a second provider of cryptography, and then rustls asks which one is
    // meant. If the program has chosen already, it stays with that.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut options = TlsOptions::new();
    if let Some(ca) = &files.ca {
        options = options.with_pem_ca(&read(ca)?).map_err(of_request)?;
    }
    if let Some((cert, key)) = files.identity()? {
        options = options.with_pem_identity(&read(&cert)?, &read(&key)?).map_err(of_request)?;
    }
    Ok(options)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!("cannot read {}: {error}", path.display())).caused_by(error)
    })
}

pub(super) struct Session {
    pub(super) client: Client,
    /// What was asked for: as long as the longest of its leases lasts, or a little longer.
    pub(super) timeout: Duration,
    /// It may turn out to be less than was thought when the session was opened.
    pub(super) slack: Mutex<Duration>,
    clock: Clock,
    /// When the last write was sent that was answered.
    proved: Mutex<Moment>,
    /// When somebody was last seen to use it.
    pub(super) used: Mutex<Moment>,
    /// Locks whose queue is followed.
    pub(super) queues: Mutex<HashMap<Arc<str>, Arc<Queue>>>,
    /// When to look for nodes that nobody knows of.
    sweeps: Mutex<Vec<Moment>>,
    /// What ends with this session.
    pub(super) tasks: Mutex<JoinSet<()>>,
}

impl Session {
    pub(super) fn new(
        client: Client,
        timeout: Duration,
        slack: Duration,
        clock: Clock,
        asked: Moment,
    ) -> Self {
        let (slack, proved, used) = (Mutex::new(slack), Mutex::new(asked), Mutex::new(asked));
        let (queues, sweeps, tasks) = (Mutex::default(), Mutex::default(), Mutex::default());
        Self { client, timeout, slack, clock, proved, used, queues, sweeps, tasks }
    }

    /// Refuses a TTL if the server does not keep this session for that long, or keeps it for
    /// much longer: nobody would notice that a lease ends sooner or later than agreed.
    pub(super) fn check_ttl(&self, ttl: Duration) -> Result<()> {
        let (asked, granted) = (self.timeout, self.client.session_timeout());
        if ttl <= granted && granted <= asked {
            return Ok(());
        }
        let message = format!(
            "this ZooKeeper keeps sessions for {granted:?} when {asked:?} are asked for, so \
             a lease would not last for its TTL of {ttl:?}; choose a TTL that it allows (see \
             `leasehold doctor`), or set its minSessionTimeout and maxSessionTimeout"
        );
        Err(Error::new(ErrorKind::Refused, message))
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
        let message = "not connected to ZooKeeper just now";
        let disconnected = || Error::new(ErrorKind::Unreachable, message).not_applied();
        self.is_connected().then_some(()).ok_or_else(disconnected)
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
        let _ = timeout(limit, connected).await;
        self.check_connected()
    }

    /// A write that was sent at this moment has been answered.
    pub(super) fn proved(&self, sent: Moment) -> Proof {
        let mut proved = self.proved.lock();
        *proved = sent.max(*proved);
        self.proof_of(sent)
    }

    /// What is proved already.
    pub(super) fn proof(&self) -> Proof {
        self.proof_of(self.proved_at())
    }

    /// When the last write was sent that was answered, whatever the slack is.
    pub(super) fn proved_at(&self) -> Moment {
        *self.proved.lock()
    }

    fn proof_of(&self, sent: Moment) -> Proof {
        Proof { at: sent - *self.slack.lock(), valid_for: self.timeout }
    }

    /// How long ago it was proved. Without the slack, which no new proof makes shorter.
    pub(super) fn age_of_proof(&self) -> Duration {
        self.proved_at().until(self.clock.now())
    }

    /// Proves it again, unless a lease of this TTL would last at least half as long as with a
    /// new proof.
    pub(super) async fn renew_proof(&self, ttl: Duration, path: &str) -> Result<()> {
        let is_old = self.age_of_proof() > ttl.saturating_sub(*self.slack.lock()) / 2;
        if is_old { self.prove(path).await } else { Ok(()) }
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

    /// Deletes a node, if it is there.
    pub(super) async fn delete(&self, path: &str) -> Result<()> {
        self.check_connected()?;
        let sent = self.clock.now();
        found(self.client.delete(path, None).await)?;
        self.proved(sent);
        Ok(())
    }

    /// What lies below a node, as the leader knows it; `None` if there is no such node.
    pub(super) async fn children(&self, path: &str) -> Result<Option<Vec<String>>> {
        // Both are sent now: the server first catches up with its leader, then answers.
        let (syncing, listing) = (self.client.sync(path), self.client.list_children(path));
        syncing.await.map_err(of_request)?;
        found(listing.await)
    }

    /// The queue of this lock, if we see all that happens there.
    pub(super) fn followed(&self, lock: &str) -> Option<Arc<Queue>> {
        self.queues.lock().get(lock).filter(|queue| queue.is_up_to_date()).cloned()
    }

    /// Nodes of ours may appear that nobody knows of: look for them soon, and later again.
    pub(super) fn expect_strangers(&self) {
        let now = self.clock.now();
        let later = [200, 1_000, 5_000].map(|millis| now + Duration::from_millis(millis));
        self.sweeps.lock().extend(later);
    }

    /// Whether strangers are expected.
    pub(super) fn has_sweeps(&self) -> bool {
        !self.sweeps.lock().is_empty()
    }

    /// Whether it is time to look, which then counts as done.
    pub(super) fn take_sweep(&self, now: Moment) -> bool {
        let mut sweeps = self.sweeps.lock();
        let before = sweeps.len();
        sweeps.retain(|due| *due > now);
        sweeps.len() < before
    }
}

/// What goes by one session together, in the order in which it came.
pub(super) fn by_session<T>(
    items: impl IntoIterator<Item = (Arc<Session>, T)>,
) -> Vec<(Arc<Session>, Vec<T>)> {
    let mut groups: Vec<(Arc<Session>, Vec<T>)> = Vec::new();
    for (session, item) in items {
        match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &session)) {
            Some((_, group)) => group.push(item),
            None => groups.push((session, vec![item])),
        }
    }
    groups
}

impl AsRef<Client> for Session {
    fn as_ref(&self) -> &Client {
        &self.client
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("id", &self.client.session_id())
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

    #[test]
    fn a_session_lasts_at_least_as_long_as_its_leases_and_not_much_longer() {
        let timeout = |millis| timeout_for(Duration::from_millis(millis)).unwrap();
        for usual in [100, 500, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 30_000, 60_000] {
            assert_eq!(timeout(usual), usual);
        }
        for millis in (100..2_000).chain((2_000..300_000).step_by(7)) {
            let lasts = timeout(millis);
            assert!(lasts >= millis && 4 * lasts <= 5 * millis + 4, "{lasts} for {millis}");
        }
        let longest = LONGEST.as_millis() as u64;
        assert_eq!((timeout(7), timeout(longest)), (7, longest));
        assert_eq!(timeout_for(Duration::from_nanos(29_999_000_001)).unwrap(), 30_000);
        assert!(timeout_for(LONGEST + Duration::from_millis(1)).is_err());
    }
}
