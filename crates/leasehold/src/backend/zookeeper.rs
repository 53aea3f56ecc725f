//! Locks in ZooKeeper: ephemeral sequential nodes, named as kazoo's `Lock` or Curator's
//! recipes name them, so that all of them exclude each other on one path.
//!
//! A lease lives in a session, which it shares with others of its client and of about its TTL.
//! Its token is the transaction that created its node. What only ZooKeeper offers (a check for
//! your own `multi`) is at [`ZookeeperStore::check`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use parking_lot::Mutex;

use super::kit::verbs::verbs;
use crate::clock::Clock;
use crate::error::{Error, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees};
use crate::name::Name;

pub use check::LeaseCheck;
pub use layout::Layout;

use acquire::Known;
use ledger::Shared;
use paths::Paths;
use sessions::Sessions;
use url::Target;

mod acquire;
mod admin;
mod check;
mod error;
mod examine;
mod four_letter;
mod hold;
mod janitor;
mod layout;
mod ledger;
mod nodes;
mod paths;
mod payload;
mod queue;
mod session;
mod sessions;
mod url;
mod wait;

/// Locks in ZooKeeper.
#[derive(Debug)]
pub struct ZookeeperStore {
    target: Arc<Target>,
    clock: Clock,
    guarantees: Guarantees,
    paths: Paths,
    shared: Arc<Shared>,
    sessions: Sessions,
    /// Locks whose node exists.
    known: Mutex<HashMap<Arc<str>, Known>>,
    /// Locks whose mixed layouts were reported.
    reported: Mutex<HashSet<Name>>,
}

impl ZookeeperStore {
    /// Opens `zk://user:password@host:port,host:port/root?layout=kazoo`, or `zks:` for TLS.
    ///
    /// # Errors
    ///
    /// [`Invalid`](crate::ErrorKind::Invalid) for a URL that cannot work,
    /// [`Unreachable`](crate::ErrorKind::Unreachable) if no server opens a session within
    /// five seconds.
    pub async fn open(url: &str, clock: Clock) -> Result<Arc<Self>> {
        let opened = Self::open_url(url, clock).await;
        opened.map_err(|error| error.on_store("zookeeper").during(Operation::Connect, None))
    }

    async fn open_url(url: &str, clock: Clock) -> Result<Arc<Self>> {
        let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
        let secure = match scheme {
            "zk" | "zookeeper" => false,
            "zks" => true,
            _ => return Err(Error::invalid("a ZooKeeper URL begins with zk:// or zks://")),
        };
        let target = Arc::new(Target::parse(rest, secure)?);
        let guarantees = Guarantees {
            consistency: Consistency::Linearizable,
            ends_with: EndsWith::Session,
            tokens: "the transaction that created the node (czxid)",
            fair: true,
            survives_restart: true,
            may_lose: &["a data folder restored from a backup takes locks and tokens back with it"],
            ..Guarantees::of("zookeeper")
        };
        let (shared, paths) = (Arc::new(Shared::new(clock.clone())), Paths::of(&target));
        let store = Arc::new(Self {
            clock,
            guarantees,
            sessions: Sessions::new(target.clone(), shared.clone(), paths.bell()),
            target,
            paths,
            shared: shared.clone(),
            known: Mutex::default(),
            reported: Mutex::default(),
        });
        store.sessions.reader().await?;
        tokio::spawn(janitor::clean_up(Arc::downgrade(&store), shared));
        Ok(store)
    }

    /// The error for the user: it names missing credentials where there are none.
    fn explained<T>(&self, answer: Result<T>) -> Result<T> {
        match self.target.digest {
            Some(_) => answer,
            None => answer.map_err(error::without_user),
        }
    }
}

impl Drop for ZookeeperStore {
    fn drop(&mut self) {
        // Entries keep their session, whose tasks keep the ledger.
        let entries = self.shared.ledger.lock().take_all();
        // Outside of the lock: with its last entry a session goes.
        drop(entries);
        // The janitor sees that its store has gone.
        self.shared.chores.notify_one();
    }
}

// A batch is one proposal and one fsync; it stays well below the 1 MB of a packet.
// Requests take turns: the server passes each through five threads, which costs more than
// what is in it, and each flush of its log is for what came before.
verbs!(ZookeeperStore, "zookeeper", |store| &store.guarantees, Limits::new(128, 2).in_step());
