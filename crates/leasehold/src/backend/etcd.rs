//! The etcd store: linearizable locks, as keys in a queue.
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

use etcd_client::GetOptions;
use parking_lot::Mutex;

use self::keys::Layout;
use self::ledger::Ledger;
use self::queue::Queue;
use self::transport::Endpoints;
use self::url::Address;
use self::watcher::{Watch, Watcher};
use super::kit::hints::Hints;
use super::kit::verbs::verbs;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees, Scope};
use crate::name::Name;

pub use etcd_client::Compare;

mod acquire;
mod admin;
mod compare;
mod error;
mod hold;
mod janitor;
mod keys;
mod ledger;
mod queue;
mod session;
mod transport;
mod url;
mod wait;
mod watcher;

const STORE: &str = "etcd";

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
    /// The watch on the records of force-releases.
    forced: Mutex<Option<Watch>>,
    ledger: Mutex<Ledger>,
    queues: Mutex<HashMap<Name, Arc<Queue>>>,
    /// For how many requests others are expected in the queue.
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
        let opened = Self::connect(url, clock).await;
        opened.map_err(|error| error.on_store(STORE).during(Operation::Connect, None))
    }

    async fn connect(url: &str, clock: Clock) -> Result<Arc<Self>> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("etcd", url));
        let address = Address::parse(scheme == "etcds", rest)?;
        let endpoints = Arc::new(Endpoints::new(&address)?);
        let store = Arc::new(Self {
            clock,
            guarantees: Guarantees {
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
                ..Guarantees::of(STORE)
            },
            layout: Layout::below(&address.prefix),
            watcher: Watcher::new(endpoints.clone()),
            endpoints,
            hints: Hints::default(),
            forced: Mutex::default(),
            ledger: Mutex::default(),
            queues: Mutex::default(),
            crowded: AtomicU32::new(0),
            opening: tokio::sync::Mutex::default(),
        });
        let no_password = address.user.is_some_and(|(_, password)| password.is_empty());
        store.ask_any_member().await.map_err(|error| match error.kind() {
            ErrorKind::Unusable if no_password => {
                let message = "etcd refuses this user, and the URL has no password for it: write \
                               etcd://user:password@host";
                Error::new(ErrorKind::Unusable, message).not_applied().caused_by(error)
            }
            _ => error,
        })?;
        tokio::spawn(janitor::run(Arc::downgrade(&store)));
        Ok(store)
    }

    /// Asks each member in turn until one answers.
    async fn ask_any_member(&self) -> Result<()> {
        let mut last = Ok(());
        for _ in self.endpoints.urls() {
            let asking = self.endpoints.get(self.layout.probe(), GetOptions::new());
            last = self.endpoints.within(OPENING, asking).await.map(drop);
            if last.is_ok() {
                break;
            }
        }
        last
    }
}

verbs!(EtcdStore, STORE, |store| &store.guarantees, Limits::new(BATCH, 1));
