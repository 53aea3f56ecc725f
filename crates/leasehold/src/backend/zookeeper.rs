//! Locks in ZooKeeper: ephemeral sequential nodes, named as kazoo's `Lock` or Curator's
//! recipes name them, so that all of them exclude each other on one path.
//!
//! A lease lives in a session, which it shares with others of its client and of about its TTL.
//! Its token is the transaction that created its node. What only ZooKeeper offers (a check for
//! your own `multi`) is at [`ZookeeperStore::check`].

use std::collections::HashSet;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::AbortHandle;

use super::{
    Backend, Claim, Finding, Grant, Hint, Hold, Limits, LockInfo, Release, Renewal, Reply, Turn,
    Verdict,
};
use crate::clock::Clock;
use crate::error::{Error, Operation, Result};
use crate::guarantees::{Consistency, EndsWith, Guarantees};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

pub use check::LeaseCheck;
pub use layout::Layout;

use books::Books;
use nodes::Nodes;
use path::Paths;
use sessions::Sessions;
use url::Target;

mod books;
mod card;
mod check;
mod claim;
mod error;
mod examine;
mod force;
mod hold;
mod inspect;
mod janitor;
mod judge;
mod layout;
mod line;
mod nodes;
mod path;
mod place;
mod session;
mod sessions;
mod settle;
mod table;
mod tick;
mod url;
mod wait;
mod words;

/// Locks in ZooKeeper.
#[derive(Debug)]
pub struct ZookeeperStore {
    target: Arc<Target>,
    paths: Paths,
    guarantees: Guarantees,
    nodes: Nodes,
    books: Arc<Books>,
    sessions: Sessions,
    /// Locks whose mixed layouts were reported.
    reported: Mutex<HashSet<Name>>,
    janitor: Mutex<Option<AbortHandle>>,
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
        let books = Arc::new(Books::new(clock));
        let store = Arc::new(Self {
            paths: Paths::below(&target.root),
            guarantees,
            nodes: Nodes::new(&target),
            sessions: Sessions::new(target.clone(), books.clone()),
            target,
            books: books.clone(),
            reported: Mutex::default(),
            janitor: Mutex::default(),
        });
        store.sessions.reader().await?;
        let janitor = tokio::spawn(janitor::clean_up(Arc::downgrade(&store), books));
        *store.janitor.lock() = Some(janitor.abort_handle());
        Ok(store)
    }

    /// The error for the user: it names missing credentials where there are none.
    fn told<T>(&self, answer: Result<T>) -> Result<T> {
        match self.target.digest {
            Some(_) => answer,
            None => answer.map_err(error::without_user),
        }
    }

    /// Whether this lock's mixed layouts have not been reported yet.
    fn is_news(&self, name: &Name) -> bool {
        self.reported.lock().insert(name.clone())
    }
}

impl Drop for ZookeeperStore {
    fn drop(&mut self) {
        if let Some(janitor) = self.janitor.get_mut() {
            janitor.abort();
        }
        // Entries keep their session, whose tasks keep the books.
        self.books.table.clear();
    }
}

impl Backend for ZookeeperStore {
    fn guarantees(&self) -> &Guarantees {
        &self.guarantees
    }

    fn limits(&self) -> Limits {
        // A batch is one proposal and one fsync; it stays well below the 1 MB of a packet.
        // In step: the server passes a request through five threads, which costs more than
        // what is in it, and each flush of its log is for what came before.
        Limits::new(128, 2).in_step()
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        Box::pin(async move { self.told(self.claim(claims).await) })
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        Box::pin(self.wait_in_line(claim))
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        Box::pin(async move { self.take_out(claim.owner).await })
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        Box::pin(async move {
            let mut grants = Vec::with_capacity(claims.len());
            for claim in &claims {
                grants.push(self.settle_one(claim).await?);
            }
            Ok(grants)
        })
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        Box::pin(async move { self.renew_all(holds).await })
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        Box::pin(async move { self.release_all(holds).await })
    }

    fn inspect(self: Arc<Self>, name: Name) -> Reply<Option<LockInfo>> {
        Box::pin(async move { self.told(self.look_at(&name).await) })
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        Box::pin(async move { self.told(self.look_at_all(&prefix).await) })
    }

    fn force_release(self: Arc<Self>, name: Name, forced: Forced) -> Reply<Option<Token>> {
        Box::pin(async move { self.told(self.force(name, forced).await) })
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        Box::pin(async move { self.examine_set_up().await })
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move { Ok(self.books.hints.next().await) })
    }
}
