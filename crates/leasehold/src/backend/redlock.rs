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

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use super::kit::hints::Hints;
use super::kit::verbs::verbs;
// All that it shares with one server of Redis.
use super::redis::{
    admin::{REMEMBERED, Seen, lease, names_at},
    connection::{Connector, Value},
    error::{Failure, unexpected},
    examine::{of_server, refuse_unsafe},
    info::Info,
    keys::{Companion, Keys},
    script::{Call, Record, Script, scripts},
    script::{bytes, encode_holder, left, millis, number, parts, text},
    session::{KEEPS, Role, Server},
    url::{Host, Settings},
    waiters::Waiters,
};
use crate::backend::Hint;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, Guarantees};
use crate::name::Name;
use crate::owner::Owner;

use ledger::Ledger;
use node::{Node, list_hash};
pub use recovery::repair;
#[doc(hidden)]
pub use script::script_text;
pub use votes::{NodeVerdict, NodeVerdicts};

mod acquire;
mod admin;
mod attempt;
mod hold;
mod ledger;
mod node;
mod poll;
mod recovery;
mod script;
mod votes;
mod wait;

/// The most claims, renewals or releases of one call.
const BATCH: usize = 256;
/// How many calls of one kind are under way at once. Few, so that claims travel together: all
/// nodes pay for each call, and much less for one more claim in it.
const IN_FLIGHT: usize = 2;
/// Fewer nodes than this tolerate no failure.
const FEWEST: usize = 3;
/// More nodes than this are a mistake.
const MOST: usize = 31;
/// How far a token may be ahead of the clocks and still lead the guesses, in µs.
const CREDIBLE: u64 = 1_000_000;

const NAME: &str = "redlock";

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
    ledger: Ledger,
    /// There is a node to bring back.
    recovery_due: Arc<Notify>,
    hints: Hints,
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
        opening.await.map_err(|error| error.on_store(NAME).during(Operation::Connect, None))
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
        Ok(Self {
            majority: nodes.len() / 2 + 1,
            list,
            marker,
            channel,
            epoch: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
            last_guess: AtomicU64::new(0),
            ledger: Ledger::default(),
            recovery_due: Arc::default(),
            hints: Hints::default(),
            tasks: Vec::new(),
            guarantees: promises(),
            settings,
            clock,
            nodes,
        })
    }

    /// From now on it hears its nodes, and brings them back.
    fn start(mut self) -> Arc<Self> {
        Arc::new_cyclic(|this| {
            let recovering = recovery::recover_when_due(this.clone(), self.recovery_due.clone());
            self.tasks.push(tokio::spawn(recovering));
            for node in &self.nodes {
                let (this, index) = (this.clone(), node.index);
                let mut messages = node.messages.hints.subscribe();
                self.tasks.push(tokio::spawn(async move {
                    loop {
                        let hint = messages.recv().await.unwrap_or(Hint::All);
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
        let asked = self.nodes.iter().map(async |node| (node, Info::ask(&node.server).await));
        let mut keeps = true;
        for (node, info) in join_all(asked).await {
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

    fn keys(&self, name: &Name) -> Keys {
        Keys::new(&self.settings.prefix, name)
    }

    /// A call of a script that looks at the marker first, with so many other keys.
    fn call(&self, script: &'static Script, keys: usize) -> Call {
        let mut call = Call::new(script, 0, 1 + keys);
        call.arg(&self.marker);
        call
    }

    /// How the marker of a node that votes with us begins.
    fn expected(&self) -> String {
        format!("member {} {} ", self.list, self.epoch.load(Ordering::Acquire))
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

    /// How long a node may take: well below the TTLs, and little enough that two round trips end
    /// before the caller gives up.
    fn limit(&self, ttls: impl Iterator<Item = Duration>) -> Duration {
        const LEAST: Duration = Duration::from_millis(20);
        const MOST: Duration = Duration::from_millis(800);
        let most = self.settings.timeout;
        (ttls.min().unwrap_or(most) / 4).max(LEAST).min(MOST).min(most)
    }

    /// A node's message.
    fn heard(&self, node: usize, hint: Hint) {
        match hint {
            Hint::Lease(owner) if self.ledger.heard(owner, node) => return,
            Hint::Lease(_) => {}
            Hint::All => self.ledger.heard_nothing(self.clock.now()),
        }
        self.hints.announce(hint);
    }
}

fn check_list(settings: &Settings) -> Result<()> {
    let (hosts, count) = (&settings.hosts, settings.hosts.len());
    let mut places = hosts.iter().enumerate();
    let wrong = if count < FEWEST {
        format!(
            "redlock needs at least three independent nodes, and this URL names {count}: with \
             fewer none may fail (for one server write redis://)"
        )
    } else if count > MOST {
        format!("redlock on {count} nodes is more than {MOST}")
    } else if let Some((_, host)) = places.find(|(place, host)| hosts[..*place].contains(host)) {
        format!("{host} is named twice: one node has one vote")
    } else if settings.wait_replicas > 0 {
        "wait-replicas is for redis://; a redlock needs no replicas".to_owned()
    } else {
        return Ok(());
    };
    Err(Error::invalid(wrong))
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
        ..Guarantees::of(NAME)
    }
}

verbs!(RedlockStore, NAME, |store| &store.guarantees, Limits::new(BATCH, IN_FLIGHT));

impl Drop for RedlockStore {
    fn drop(&mut self) {
        for task in &self.tasks {
            task.abort();
        }
    }
}

impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
