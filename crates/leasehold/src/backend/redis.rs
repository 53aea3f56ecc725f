//! Redis and Valkey: one server, Sentinel, Cluster.
//!
//! A lock is a plain string key that holds its owner, as a hand-written `SET NX PX` makes
//! it: foreign clients on the same key exclude us and are excluded by us. Whoever releases
//! a lock grants it to the first live waiter and tells just that one. See
//! `docs/backends/redis.md` for what this promises, and what not.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::kit::verbs::verbs;
use crate::clock::Clock;
use crate::error::{Operation, Result};
use crate::guarantees::{Consistency, Guarantees};
use crate::holder::Holder;
use crate::name::Name;
use crate::owner::Owner;

use connection::Connector;
use info::Info;
use keys::Keys;
use script::encode_holder;
#[doc(hidden)]
pub use script::script_text;
use topology::{Located, Topology};
use url::Settings;
use waiters::Waiters;

mod acquire;
pub(super) mod admin;
pub(super) mod connection;
pub(super) mod error;
pub(super) mod examine;
mod hold;
pub(super) mod info;
pub(super) mod keys;
mod layout;
pub(super) mod script;
pub(super) mod session;
mod topology;
pub(super) mod url;
mod wait;
pub(super) mod waiters;

/// The most claims, renewals or releases of one call: more would block the server for long.
const BATCH: usize = 256;
/// The most calls of one kind in flight.
const IN_FLIGHT: usize = 4;

const STORE: &str = "redis";

/// Locks on Redis or Valkey.
pub struct RedisStore {
    settings: Settings,
    clock: Clock,
    guarantees: Guarantees,
    topology: Topology,
    waiters: Arc<Waiters>,
    /// Caches the last client's holder as one word: mostly there is one client.
    holder: Mutex<Option<(Arc<Holder>, String)>>,
    /// Ends with the store.
    _heartbeats: JoinSet<()>,
}

impl RedisStore {
    /// Opens the store behind this URL:
    ///
    /// | URL | deployment |
    /// |---|---|
    /// | `redis://[user:password@]host[:port][/database]` | one server |
    /// | `redis+sentinel://host[:port],…/master[/database]` | Sentinel |
    /// | `redis+cluster://host[:port],…` | Cluster |
    ///
    /// `rediss`, `rediss+sentinel` and `rediss+cluster` are the same over TLS. Options:
    /// `prefix` (default `lock:`), `timeout` (`2s`), `wait-replicas`, `allow-unsafe`, for TLS
    /// `ca`, `cert` and `key`, for Sentinel `sentinel-user` and `sentinel-password`.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a URL that cannot work,
    /// [`Unreachable`](crate::ErrorKind::Unreachable) when no server answers in time,
    /// [`Refused`](crate::ErrorKind::Refused) when it may throw locks away.
    pub async fn open(url: &str, clock: Clock) -> Result<Arc<Self>> {
        let opening = async { Self::open_with(Settings::parse(url)?, clock).await };
        opening.await.map_err(|error| error.on_store(STORE).during(Operation::Connect, None))
    }

    async fn open_with(settings: Settings, clock: Clock) -> Result<Arc<Self>> {
        let waiters = Waiters::new(clock.clone());
        let connector = Connector::new(&settings, &clock, &waiters)?;
        // Every store has its own channel, so that each message reaches one client.
        let channel = format!("leasehold:wake:{}", Owner::random());
        let topology = Topology::open(&settings, connector, channel).await?;
        let mut persists = true;
        for server in topology.masters().await? {
            let info = Info::ask(&server).await?;
            examine::refuse_unsafe(&server, &info, settings.allow_unsafe)?;
            examine::refuse_another(&topology, &server, &info)?;
            persists &= info.persists();
        }
        let guarantees = Guarantees {
            consistency: Consistency::BestEffort,
            tokens: "max(last + 1, the server's clock in µs)",
            fair: true,
            survives_restart: persists,
            may_lose: &[
                "a fail-over: replication is asynchronous (wait-replicas narrows it)",
                "a restart without appendonly, or a crash with appendfsync everysec",
                "FLUSHALL, DEL of the lock's key, eviction",
            ],
            ..Guarantees::of(STORE)
        };
        Ok(Arc::new_cyclic(|store| {
            let mut heartbeats = JoinSet::new();
            heartbeats.spawn(wait::heartbeats(store.clone(), waiters.clone(), clock.clone()));
            let (holder, _heartbeats) = (Mutex::default(), heartbeats);
            Self { settings, clock, guarantees, topology, waiters, holder, _heartbeats }
        }))
    }

    fn keys(&self, name: &Name) -> Keys {
        Keys::new(&self.settings.prefix, name)
    }

    /// Tells a script who asks: the channel for grants in this slot, and the holder.
    fn who(&self, slot: u16, holder: &Arc<Holder>) -> String {
        let mut last = self.holder.lock();
        let known = last.take().filter(|(known, _)| Arc::ptr_eq(known, holder));
        let (_, word) =
            last.insert(known.unwrap_or_else(|| (holder.clone(), encode_holder(holder))));
        format!("{} {word}", self.topology.channel(slot))
    }

    fn locate<T>(&self, items: Vec<T>, name: impl Fn(&T) -> &Name) -> Vec<Located<T>> {
        items.into_iter().map(|item| (self.keys(name(&item)), item)).collect()
    }
}

verbs!(RedisStore, STORE, |store| &store.guarantees, Limits::new(BATCH, IN_FLIGHT));

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
