//! The etcd store: linearizable locks, as keys in line.
//!
//! A claim is a key below the lock's name that hangs on the client's lease; the oldest one
//! has the lock. This is the layout of `etcdctl lock` and of Go's `concurrency.Mutex`, so
//! all of them exclude each other. The token is the key's create revision.
//!
//! What only etcd offers: [`EtcdStore::is_owner`], a compare for the user's own
//! transactions.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use parking_lot::Mutex;

use self::hints::Hints;
use self::keys::Layout;
use self::line::Line;
use self::table::Table;
use self::transport::Endpoints;
use self::url::Address;
use self::watcher::Watcher;
use super::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

pub use etcd_client::Compare;

mod claim;
mod compare;
mod error;
mod examine;
mod force;
mod hints;
mod hold;
mod inspect;
mod janitor;
mod keys;
mod line;
mod proposal;
mod release;
mod seat;
mod session;
mod table;
mod transport;
mod url;
mod value;
mod wait;
mod watcher;

const STORE: &str = "etcd";

/// With at most this many ahead a waiter follows the whole line.
const NEAR: usize = 16;
/// How long a place in line is kept for somebody who does not wait on it.
const KEEPS_PLACE: Duration = Duration::from_secs(5);
/// How many claims share a transaction: etcd takes 128 operations, nested ones included.
const BATCH: usize = 120;
/// How long a member may take to answer when the store is opened.
const OPENING: Duration = Duration::from_secs(3);

/// The etcd store. Each one is a client with sessions (etcd leases) of its own.
pub struct EtcdStore {
    clock: Clock,
    guarantees: Guarantees,
    layout: Layout,
    endpoints: Arc<Endpoints>,
    watcher: Watcher,
    hints: Hints,
    table: Mutex<Table>,
    lines: Mutex<HashMap<Name, Arc<Line>>>,
    /// For how many requests others are expected to be in line.
    crowded: AtomicU32,
    /// Sessions are opened one at a time.
    opening: tokio::sync::Mutex<()>,
}

impl fmt::Debug for EtcdStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EtcdStore")
            .field("endpoints", &self.endpoints)
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

impl EtcdStore {
    /// Connects to the cluster behind a URL:
    /// `etcd://user:password@host:port,host:port/prefix`, or `etcds://…?ca=/path` for TLS,
    /// with `cert`, `key` and `server-name` as further options.
    ///
    /// # Errors
    ///
    /// When the URL cannot be used, or no member answers in time.
    pub async fn open(url: &str, clock: Clock) -> Result<Arc<Self>> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("etcd", url));
        let address = Address::parse(scheme == "etcds", rest)?;
        let no_password = address.user.as_ref().is_some_and(|(_, password)| password.is_empty());
        let opening = |mut error: Error| {
            if no_password && *error.kind() == ErrorKind::Unusable {
                let message = "etcd refuses this user, and the URL has no password for it: write \
                               etcd://user:password@host";
                error = Error::new(ErrorKind::Unusable, message).caused_by(error);
            }
            error.on_store(STORE).during(Operation::Connect, None)
        };
        let endpoints = Arc::new(Endpoints::new(&address).map_err(opening)?);
        let store = Arc::new(Self {
            clock,
            guarantees: Guarantees {
                store: STORE,
                consistency: Consistency::Linearizable,
                scope: Scope::Network,
                ends_with: EndsWith::Session,
                tokens: "the create revision of the lock's key",
                fair: true,
                survives_restart: true,
                may_lose: &[
                    "a restore from an older snapshot",
                    "a leader that was paused, before 3.4.31 and 3.5.13 (etcd#15247)",
                ],
                extra_drift: Duration::ZERO,
            },
            layout: Layout::below(&address.prefix),
            watcher: Watcher::new(endpoints.clone()),
            endpoints,
            hints: Hints::default(),
            table: Mutex::default(),
            lines: Mutex::default(),
            crowded: AtomicU32::new(0),
            opening: tokio::sync::Mutex::default(),
        });
        store.is_there().await.map_err(opening)?;
        tokio::spawn(janitor::run(Arc::downgrade(&store)));
        Ok(store)
    }

    /// Asks each member in turn until one answers.
    async fn is_there(&self) -> Result<()> {
        let mut last = None;
        for _ in 0..self.endpoints.count() {
            let probe = self.layout.probe();
            let asking = self.endpoints.call(async |mut etcd| etcd.get(probe, None).await);
            match self.endpoints.within(OPENING, asking).await {
                Ok(_) => return Ok(()),
                Err(error) => last = Some(error),
            }
        }
        last.map_or(Ok(()), Err)
    }
}

impl Backend for EtcdStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn limits(&self) -> Limits {
        Limits::new(BATCH, 1)
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move { self.claim(claims).await })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(async move { self.await_turn(&claim).await })
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        Box::pin(async move { self.go(claim).await })
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        Box::pin(async move {
            let mut grants = Vec::new();
            for claim in &claims {
                grants.push(self.find_out(claim).await?);
            }
            Ok(grants)
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        Box::pin(async move { self.prove(holds).await })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        Box::pin(async move { self.give_back(holds).await })
    }

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        Box::pin(async move { self.look_at(&name).await })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        Box::pin(async move { self.look_at_all(&prefix).await })
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        Box::pin(async move { self.force(&name, &forced).await })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        Box::pin(async move { self.findings().await })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move { Ok(self.hints.next().await) })
    }
}
