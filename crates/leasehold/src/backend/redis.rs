//! Redis and Valkey: one server, Sentinel, Cluster.
//!
//! A lock is a plain string key that holds its owner, as a hand-written `SET NX PX` makes
//! it: foreign clients on the same key exclude us and are excluded by us. Whoever releases
//! a lock grants it to the first live waiter and tells just that one. See
//! `docs/backends/redis.md` for what this promises, and what not.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;

use super::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use crate::clock::Clock;
use crate::error::{Operation, Result};
use crate::guarantees::{Consistency, Guarantees};
use crate::holder::Holder;
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

use answer::encode_holder;
use batch::Located;
use connector::Connector;
use info::Info;
use keys::Keys;
use route::Route;
#[doc(hidden)]
pub use script::script_text;
use url::Settings;
use waiters::Waiters;

pub(super) mod answer;
mod batch;
pub(super) mod claim;
mod cluster;
mod connection;
pub(super) mod connector;
mod ears;
pub(super) mod error;
pub(super) mod examine;
mod force;
mod hold;
pub(super) mod info;
pub(super) mod inspect;
pub(super) mod keys;
mod pulse;
mod replicas;
mod request;
mod resp;
mod route;
pub(super) mod script;
mod sentinel;
pub(super) mod server;
mod slots;
pub(super) mod url;
pub(super) mod waiters;
mod wire;

/// The most claims, renewals or releases of one call: more would keep the server from
/// others for long.
const BATCH: usize = 256;
/// How many calls of one kind are under way at once.
const IN_FLIGHT: usize = 4;

const STORE: &str = "redis";

/// Locks on Redis or Valkey.
pub struct RedisStore {
    settings: Settings,
    clock: Clock,
    guarantees: Guarantees,
    route: Route,
    waiters: Arc<Waiters>,
    /// The last client's holder, as one word: mostly there is one client.
    holder: Mutex<Option<(Arc<Holder>, Arc<str>)>>,
    pulse: JoinHandle<()>,
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
        let settings = Settings::parse(url)?;
        let opening = Self::open_with(settings, clock).await;
        opening.map_err(|error| error.on_store(STORE).during(Operation::Connect, None))
    }

    async fn open_with(settings: Settings, clock: Clock) -> Result<Arc<Self>> {
        let waiters = Waiters::new(clock.clone());
        let connector = Connector::new(&settings, &clock, &waiters)?;
        // Its own, so that each message reaches one client.
        let channel = format!("leasehold:wake:{}", Owner::random());
        let route = Route::open(&settings, connector, channel).await?;
        let mut persists = true;
        for server in route.masters().await? {
            let info = Info::ask(&server).await?;
            examine::refuse_unsafe(&server, &info, settings.allow_unsafe)?;
            route.check(&server, &info)?;
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
            let beating = pulse::beat(store.clone(), waiters.clone(), clock.clone());
            let pulse = tokio::spawn(beating);
            let holder = Mutex::default();
            Self { settings, clock, guarantees, route, waiters, holder, pulse }
        }))
    }

    fn keys(&self, name: &Name) -> Keys {
        Keys::new(&self.settings.prefix, name)
    }

    /// How scripts know who asks: where it hears of grants in this slot, and the holder.
    fn who(&self, slot: u16, holder: &Arc<Holder>) -> String {
        let mut who = self.route.channel(slot);
        who.push(' ');
        who.push_str(&self.holder_word(holder));
        who
    }

    fn holder_word(&self, holder: &Arc<Holder>) -> Arc<str> {
        let mut last = self.holder.lock();
        match &*last {
            Some((known, word)) if Arc::ptr_eq(known, holder) => word.clone(),
            _ => {
                let word: Arc<str> = encode_holder(holder).into();
                *last = Some((holder.clone(), word.clone()));
                word
            }
        }
    }

    fn locate<T>(&self, items: Vec<T>, name: impl Fn(&T) -> &Name) -> Vec<Located<T>> {
        items.into_iter().map(|item| (self.keys(name(&item)), item)).collect()
    }
}

impl Backend for RedisStore {
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
            self.keys(&name).check()?;
            let info = self.look(vec![name]).await?.pop();
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
        Box::pin(async move { Ok(self.waiters.next_hint().await) })
    }
}

impl Drop for RedisStore {
    fn drop(&mut self) {
        self.pulse.abort();
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.settings).finish_non_exhaustive()
    }
}
