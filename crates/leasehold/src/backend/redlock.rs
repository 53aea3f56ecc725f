//! Redlock: locks on a majority of independent Redis masters, with fencing tokens.
//!
//! No other Redlock gives a token. Here a majority of the nodes stores it together with the
//! lock: usually in the one round trip that takes the lock, with a guess, and otherwise in a
//! second one (`docs/backends/redlock.md`; the protocol is explored to its last state in
//! `crates/leasehold-models`, whose node is the model of the scripts here).

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinHandle;

use super::redis::examine::refuse_unsafe;
use super::redis::info::Info;
use super::redis::keys::Keys;
use super::redis::session::KEEPS;
use super::redis::url::Settings;
use crate::backend::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, Guarantees};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

use bids::Bids;
use mend::Next;
use node::{Node, Said};
pub use repair::repair;
#[doc(hidden)]
pub use script::script_text;
use standing::{Standing, expected, list_hash};
use survey::{Step, Survey};
pub use verdict::{NodeVerdict, NodeVerdicts};

mod asking;
mod bids;
mod claim;
mod examine;
mod force;
mod hold;
mod inspect;
mod line;
mod mend;
mod node;
mod poll;
mod quorum;
mod repair;
mod script;
mod standing;
mod survey;
mod tally;
mod undo;
mod verdict;

/// The most claims, renewals or releases of one call.
const BATCH: usize = 256;
/// How many calls of one kind are under way at once. Few, so that claims travel together: all
/// nodes pay for each call, and much less for one more claim in it.
const IN_FLIGHT: usize = 2;
/// Fewer nodes than this tolerate no failure.
const FEWEST: usize = 3;
/// More nodes than this are a mistake.
const MOST: usize = 31;
/// How often nodes that do not agree are looked at again before a client is refused.
const LOOKS: u32 = 4;
const BETWEEN_LOOKS: Duration = Duration::from_millis(50);
/// How many hints may be on their way; what is beyond them, renewals tell.
const HINTS: usize = 64;

/// How far a token may be ahead of the clocks and still lead the guesses, in µs.
const CREDIBLE: u64 = 1_000_000;

const STORE: &str = "redlock";

/// Locks on a majority of independent Redis masters.
pub struct RedlockStore {
    settings: Settings,
    clock: Clock,
    guarantees: Guarantees,
    nodes: Vec<Arc<Node>>,
    majority: usize,
    /// The hash of the list of nodes.
    list: String,
    /// The key of every node's marker.
    marker: String,
    /// Messages to this client.
    channel: String,
    /// The last recovery that we know of.
    epoch: AtomicU64,
    /// How far the nodes' clocks are ahead of ours, in µs.
    ahead: AtomicI64,
    last_guess: AtomicU64,
    bids: Bids,
    mending: Arc<Notify>,
    hints: mpsc::Sender<Hint>,
    hinted: tokio::sync::Mutex<mpsc::Receiver<Hint>>,
    tasks: Vec<JoinHandle<()>>,
}

impl RedlockStore {
    /// Opens the store on these nodes: `redlock://[user:password@]host[:port],host[:port],…`,
    /// `redlocks` for TLS. At least three; an odd number is best. Options: `prefix` (default
    /// `lock:`), `timeout` (`2s`), `allow-unsafe`, for TLS `ca`, `cert` and `key`; and `list`, a
    /// name for the list of nodes, where clients must reach them under different addresses.
    ///
    /// # Errors
    ///
    /// [`Invalid`](ErrorKind::Invalid) for a URL that cannot work,
    /// [`Unreachable`](ErrorKind::Unreachable) when no majority answers in time,
    /// [`Refused`](ErrorKind::Refused) when nodes belong to another list or may throw locks
    /// away, [`Unavailable`](ErrorKind::Unavailable) when too many nodes have lost their data.
    /// All of these say what every node said ([`NodeVerdicts`] is their source).
    pub async fn open(url: &str, clock: Clock) -> Result<Arc<Self>> {
        let opening = async { Self::open_with(Settings::parse(url)?, clock).await };
        opening.await.map_err(|error| error.on_store(STORE).during(Operation::Connect, None))
    }

    async fn open_with(settings: Settings, clock: Clock) -> Result<Arc<Self>> {
        let mut store = Self::new(settings, clock)?;
        store.guarantees.survives_restart = store.check_nodes().await?;
        store.join().await?;
        Ok(store.start())
    }

    fn new(settings: Settings, clock: Clock) -> Result<Self> {
        check_list(&settings)?;
        let channel = format!("leasehold:wake:{}", Owner::random());
        let marker = format!("leasehold:node:{}", settings.prefix);
        let nodes = settings
            .hosts
            .iter()
            .enumerate()
            .map(|(index, host)| Node::new(index, host, &settings, &clock, &channel, &marker));
        let nodes = nodes.collect::<Result<Vec<_>>>()?;
        let list = match &settings.list {
            Some(name) => list_hash([format!("{name}/{}", nodes.len())].iter()),
            None => list_hash(settings.hosts.iter()),
        };
        let (hints, hinted) = mpsc::channel(HINTS);
        Ok(Self {
            majority: nodes.len() / 2 + 1,
            list,
            marker,
            channel,
            epoch: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
            last_guess: AtomicU64::new(0),
            bids: Bids::default(),
            mending: Arc::default(),
            hints,
            hinted: tokio::sync::Mutex::new(hinted),
            tasks: Vec::new(),
            guarantees: promises(),
            settings,
            clock,
            nodes,
        })
    }

    /// From now on it hears its nodes, and mends them.
    fn start(mut self) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let store = &mut self;
            let mending = mend::mend(this.clone(), store.mending.clone());
            store.tasks.push(tokio::spawn(mending));
            for node in &store.nodes {
                let (this, index) = (this.clone(), node.index);
                let mut hints = node.ears.hints.subscribe();
                store.tasks.push(tokio::spawn(async move {
                    loop {
                        let hint = hints.recv().await.unwrap_or(Hint::All);
                        let Some(store) = this.upgrade() else { return };
                        store.heard(index, hint);
                    }
                }));
            }
            self
        })
    }

    /// Refuses nodes on which locks cannot work, or not safely; whether all keep their data.
    async fn check_nodes(&self) -> Result<bool> {
        let asked =
            self.nodes.iter().map(|node| async move { (node, Info::ask(&node.server).await) });
        let mut keeps = true;
        for (node, info) in futures_util::future::join_all(asked).await {
            // Those that do not answer are counted when it comes to the vote.
            let Ok(info) = info else { continue };
            refuse_unsafe(&node.server, &info, self.settings.allow_unsafe)?;
            if info.is_cluster() || !info.is_master() {
                let message = format!(
                    "{} is a replica or belongs to a cluster: redlock needs independent masters",
                    node.name()
                );
                return Err(Error::new(ErrorKind::Refused, message));
            }
            keeps &= node.server.live().await.is_ok_and(|live| live.keeps == KEEPS);
        }
        Ok(keeps)
    }

    /// Makes sure that a majority votes; founds the store if no node ever has.
    async fn join(&self) -> Result<()> {
        let patience = self.settings.timeout + self.settings.timeout;
        let until = self.clock.now() + patience;
        let mut stuck = 0;
        loop {
            let survey = self.step(&self.nodes, Step::Look).await;
            self.learn(&survey);
            let others =
                |standing: &Standing| standing.list().is_some_and(|list| list != self.list);
            let foreign = survey.stands().any(|(_, stand)| others(&stand.standing));
            let voters = survey.members(&self.list).len();
            if voters >= self.majority && !foreign {
                if voters < self.nodes.len() {
                    // Here, not only in the background: all clients may be short-lived.
                    if survey.stands().count() > voters {
                        self.mend_once().await;
                    }
                    self.mending.notify_one();
                }
                return Ok(());
            }
            let next = if foreign { Next::Stuck } else { self.mend_once().await };
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
                Next::Again(_) | Next::Stuck => {
                    return Err(survey.verdicts(&self.list).no_majority());
                }
            }
        }
    }

    fn keys(&self, name: &Name) -> Keys {
        Keys::new(&self.settings.prefix, name)
    }

    /// How the marker of a node that votes with us begins.
    fn expected(&self) -> String {
        expected(&self.list, self.epoch.load(Ordering::Acquire))
    }

    /// A token that is probably higher than any before, and that no other attempt guesses.
    fn guess(&self) -> u64 {
        let clock = self.nodes_clock();
        let next = |last: u64| Some(clock.max(last + 1));
        let before = self.last_guess.fetch_update(Ordering::AcqRel, Ordering::Acquire, next);
        clock.max(before.unwrap_or(0) + 1)
    }

    /// What the nodes' clocks should show by now, in µs.
    fn nodes_clock(&self) -> u64 {
        self.clock.wall_micros().saturating_add_signed(self.ahead.load(Ordering::Relaxed))
    }

    /// The nodes' clocks showed this, at some time since ours showed `before`. What we thought
    /// of them is changed only as far as it must be: clients of one machine think the same.
    /// It only makes guesses better.
    fn learn_clock(&self, clock: u64, before: u64) {
        let now = self.clock.wall_micros();
        let ahead_of = |ours: u64| i64::try_from(i128::from(clock) - i128::from(ours)).unwrap_or(0);
        let (least, most) = (ahead_of(now), ahead_of(before));
        if least <= most {
            let ahead = self.ahead.load(Ordering::Relaxed).clamp(least, most);
            self.ahead.store(ahead, Ordering::Relaxed);
        }
    }

    /// A token that was decided on: the next guess is above it, unless it is far ahead.
    fn learn_token(&self, token: u64) {
        if token < self.nodes_clock() + CREDIBLE {
            self.last_guess.fetch_max(token, Ordering::AcqRel);
        }
    }

    /// What a survey tells about epochs and clocks. An epoch never goes back: an old answer
    /// does not hide a newer one.
    fn learn(&self, survey: &Survey) {
        let epochs = survey.members(&self.list).into_iter().map(|(_, known)| known.epoch);
        if let Some(epoch) = epochs.max() {
            self.epoch.fetch_max(epoch, Ordering::AcqRel);
        }
        if let Some(clock) = survey.clock() {
            self.learn_clock(clock, survey.asked);
        }
    }

    /// Notes why a node did not vote, and has it mended if that helps. Whether asking again
    /// helps, since only our epoch was behind.
    fn note(&self, node: usize, said: &Said, verdicts: &mut [Option<NodeVerdict>]) -> bool {
        let (verdict, stale) = match said {
            Said::Answers(_) => {
                (NodeVerdict::Refused("it answered what no script answers".to_owned()), false)
            }
            Said::Failed(failure) => (NodeVerdict::of_failure(failure), false),
            Said::NoVote(standing) => {
                let verdict = NodeVerdict::of_standing(standing, &self.list);
                let mut stale = false;
                if let (Standing::Member(known), NodeVerdict::OtherEpoch) = (standing, &verdict) {
                    let before = self.epoch.fetch_max(known.epoch, Ordering::AcqRel);
                    stale = known.epoch >= before;
                    if known.epoch < before {
                        self.mending.notify_one();
                    }
                } else if verdict != NodeVerdict::OtherList {
                    self.mending.notify_one();
                }
                (verdict, stale)
            }
        };
        verdicts[node] = Some(verdict);
        stale
    }

    /// A node's message.
    fn heard(&self, node: usize, hint: Hint) {
        match hint {
            Hint::Lease(owner) if self.bids.heard(owner, node) => {}
            Hint::All => {
                self.bids.heard_nothing(self.clock.now());
                let _ = self.hints.try_send(hint);
            }
            // Nobody may listen, or too many are on their way: renewals tell as well.
            Hint::Lease(_) => drop(self.hints.try_send(hint)),
        }
    }
}

fn check_list(settings: &Settings) -> Result<()> {
    let count = settings.hosts.len();
    if count < FEWEST {
        let message = format!(
            "redlock needs at least three independent nodes, and this URL names {count}: with \
             fewer none may fail (for one server write redis://)"
        );
        return Err(Error::invalid(message));
    }
    if count > MOST {
        return Err(Error::invalid(format!("redlock on {count} nodes is more than {MOST}")));
    }
    for (place, host) in settings.hosts.iter().enumerate() {
        if settings.hosts[..place].contains(host) {
            return Err(Error::invalid(format!("{host} is named twice: one node has one vote")));
        }
    }
    if settings.wait_replicas > 0 {
        return Err(Error::invalid("wait-replicas is for redis://; a redlock needs no replicas"));
    }
    Ok(())
}

fn promises() -> Guarantees {
    Guarantees {
        consistency: Consistency::Quorum,
        tokens: "stored by a majority of the nodes: max(last + 1, their clocks in µs)",
        fair: false,
        may_lose: &[
            "nodes whose clocks jump or run at different paces",
            "a holder that is paused beyond its deadline (its token stops it at the resource)",
            "a majority of the nodes that loses its data",
        ],
        ..Guarantees::of(STORE)
    }
}

impl Backend for RedlockStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn limits(&self) -> Limits {
        Limits::new(BATCH, IN_FLIGHT)
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move { self.claim(claims).await })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move { self.wait_for_turn(claim).await })
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        Box::pin(async move { self.leave_line(claim).await })
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        Box::pin(async move { self.settle_claims(claims).await })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        Box::pin(async move { self.renew_holds(holds).await })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        Box::pin(async move { self.release_holds(holds).await })
    }

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        Box::pin(async move {
            let info = self.look(&[name]).await?.pop();
            Ok(info
                .filter(|info| info.lease.is_some() || info.waiters > 0 || info.forced.is_some()))
        })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        Box::pin(async move { self.look_at_all(&prefix).await })
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        Box::pin(async move { self.force(name, forced).await })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        Box::pin(async move { self.findings().await })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move {
            // The sender lives as long as this.
            Ok(self.hinted.lock().await.recv().await.unwrap_or(Hint::All))
        })
    }
}

impl Drop for RedlockStore {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
        asking::end_in_time(&self.nodes);
    }
}

impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
