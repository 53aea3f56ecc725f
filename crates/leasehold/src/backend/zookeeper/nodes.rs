//! Making nodes: with the ACL that the URL asks for on every one of them (they are not
//! inherited), and the nodes above them where they are missing.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use zookeeper_client::{
    Acl, Acls, AuthId, Client, CreateMode, CreateOptions, Error as Zk, Permission,
};

use super::error::of_request;
use super::path::Paths;
use super::url::{Access, Parents, Target};
use crate::clock::Moment;
use crate::error::Result;

/// How many locks are remembered. Whether a lock is known only saves a request.
const MOST_REMEMBERED: usize = 100_000;

#[derive(Debug)]
pub(super) struct Nodes {
    acls: Vec<Acl>,
    parents: CreateMode,
    paths: Paths,
    /// Locks whose node exists.
    known: Mutex<HashMap<Arc<str>, Known>>,
}

/// What is remembered of a lock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Whether somebody else had it when we last tried.
    pub(super) contested: bool,
    /// When that was.
    pub(super) tried: Moment,
}

impl Nodes {
    pub(super) fn new(target: &Target) -> Self {
        let creator = Acl::new(Permission::ALL, AuthId::authed());
        let acls = match target.access {
            Access::Anyone => vec![Acl::new(Permission::ALL, AuthId::anyone())],
            Access::Creator => vec![creator],
            Access::CreatorAndReaders => {
                vec![creator, Acl::new(Permission::READ, AuthId::anyone())]
            }
        };
        let parents = match target.parents {
            Parents::Persistent => CreateMode::Persistent,
            Parents::Container => CreateMode::Container,
        };
        Self { acls, parents, paths: Paths::below(&target.root), known: Mutex::default() }
    }

    /// How a node in line is made: it goes with its session.
    pub(super) fn in_line(&self) -> CreateOptions<'_> {
        CreateMode::EphemeralSequential.with_acls(Acls::new(&self.acls))
    }

    /// How the node of a lock is made: it stays.
    pub(super) fn of_lock(&self) -> CreateOptions<'_> {
        self.parents.with_acls(Acls::new(&self.acls))
    }

    /// How everything else is made.
    pub(super) fn lasting(&self) -> CreateOptions<'_> {
        CreateMode::Persistent.with_acls(Acls::new(&self.acls))
    }

    pub(super) fn is_known(&self, lock: &str) -> bool {
        self.known.lock().contains_key(lock)
    }

    /// Whether somebody else had it when we last tried.
    pub(super) fn is_contested(&self, lock: &str) -> bool {
        self.known.lock().get(lock).is_some_and(|known| known.contested)
    }

    /// Remembers this lock; what was known of it before.
    pub(super) fn remember(&self, lock: &Arc<str>, now: Known) -> Option<Known> {
        let mut known = self.known.lock();
        if let Some(before) = known.get_mut(lock) {
            return Some(std::mem::replace(before, now));
        }
        if known.len() >= MOST_REMEMBERED {
            known.clear();
        }
        known.insert(lock.clone(), now)
    }

    pub(super) fn forget(&self, lock: &str) {
        self.known.lock().remove(lock);
    }

    /// Makes the root and what is above it.
    pub(super) async fn make_root(&self, client: &Client) -> Result<()> {
        let root = self.paths.root();
        if root == "/" {
            return Ok(());
        }
        client.mkdir(root, &self.lasting()).await.map_err(of_request)
    }

    /// Makes the node of a lock, and the root if need be.
    pub(super) async fn make_lock(&self, client: &Client, lock: &str) -> Result<()> {
        self.make(client, lock, &self.of_lock()).await
    }

    /// Makes a node, and the root if need be.
    pub(super) async fn make(
        &self,
        client: &Client,
        path: &str,
        options: &CreateOptions<'_>,
    ) -> Result<()> {
        for _ in 0..2 {
            match client.create(path, b"", options).await {
                Ok(_) | Err(Zk::NodeExists) => return Ok(()),
                Err(Zk::NoNode) => self.make_root(client).await?,
                Err(error) => return Err(of_request(error)),
            }
        }
        Err(of_request(Zk::NoNode))
    }
}
