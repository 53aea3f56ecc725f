//! Which server has a lock: one, the master that sentinels name, or the node of its slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use futures_util::future::join_all;

use super::connection::{Connector, Value};
use super::keys::Keys;
use super::script::Call;
use super::session::{Role, Server};
use super::url::{Deployment, Settings};
use crate::backend::Finding;
use crate::error::{Error, ErrorKind, Outcome, Result};
use cluster::Cluster;
use replicas::Replicas;
use sentinel::Sentinel;

mod cluster;
mod replicas;
mod sentinel;
mod slots;
mod subscriptions;

/// One item and where it is kept.
pub(super) type Located<T> = (Keys, T);

/// The servers.
pub(super) enum Topology {
    /// One server has everything; its messages come on this channel.
    Single { server: Arc<Server>, replicas: Arc<Replicas>, channel: String },
    /// So does the one that sentinels name.
    Sentinel(Sentinel),
    /// Every slot has a server of its own.
    Cluster(Box<Cluster>),
}

impl Topology {
    /// Finds the servers.
    pub(super) async fn open(
        settings: &Settings,
        connector: Arc<Connector>,
        channel: String,
    ) -> Result<Self> {
        match &settings.deployment {
            Deployment::Single => {
                let host = &settings.hosts[0];
                let role = Role::Everything { channel: channel.clone() };
                let server = Server::new(&connector, host, role);
                let replicas = Replicas::new(Server::new(&connector, host, Role::Requests));
                Ok(Self::Single { server, replicas, channel })
            }
            Deployment::Independent => {
                Err(Error::invalid("independent nodes are a redlock: open it as one"))
            }
            Deployment::Sentinel { master } => {
                Ok(Self::Sentinel(Sentinel::new(connector, &settings.hosts, master, channel)))
            }
            Deployment::Cluster => {
                let cluster = Cluster::open(connector, &settings.hosts, channel).await?;
                Ok(Self::Cluster(Box::new(cluster)))
            }
        }
    }

    /// Examines the topology itself.
    pub(super) async fn examine(&self) -> Vec<Finding> {
        match self {
            Self::Single { .. } => Vec::new(),
            Self::Sentinel(sentinel) => sentinel.examine().await,
            Self::Cluster(cluster) => vec![cluster.examine()],
        }
    }

    /// The replicas of the server that has this slot.
    pub(super) async fn replicas(&self, slot: u16) -> Result<Arc<Replicas>> {
        match self {
            Self::Single { replicas, .. } => Ok(replicas.clone()),
            Self::Sentinel(sentinel) => Ok(sentinel.master().await?.replicas.clone()),
            Self::Cluster(cluster) => cluster.replicas(slot).await,
        }
    }

    /// Whether only the keys of one slot may travel together.
    pub(super) fn slots_matter(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Calls a script where its keys are.
    pub(super) async fn call(&self, call: &Call) -> Result<Value> {
        match self {
            Self::Single { server, .. } => Ok(server.call(call).await?),
            // Boxed: with one server, each request's future would be as large as these.
            Self::Sentinel(sentinel) => Box::pin(sentinel.call(call)).await,
            Self::Cluster(cluster) => Box::pin(cluster.call(call)).await,
        }
    }

    /// Asks about all items, those of one slot together if slots matter, and puts the answers
    /// back in order.
    pub(super) async fn by_slot<T, A, F: Future<Output = Result<Vec<A>>>>(
        &self,
        items: Vec<Located<T>>,
        ask: impl Fn(Vec<Located<T>>) -> F,
    ) -> Result<Vec<A>> {
        match items.len() {
            0 => Ok(Vec::new()),
            2.. if self.slots_matter() => Box::pin(each_slot(items, ask)).await,
            _ => ask(items).await,
        }
    }

    /// The channel on which grants of locks in this slot are told, as scripts want it.
    pub(super) fn channel(&self, slot: u16) -> String {
        match self {
            Self::Single { channel, .. } => format!("P:{channel}"),
            Self::Sentinel(sentinel) => format!("P:{}", sentinel.channel()),
            Self::Cluster(cluster) => cluster.channel(slot),
        }
    }

    /// Whether messages about locks in this slot are heard already.
    pub(super) fn listens(&self, slot: u16) -> bool {
        match self {
            Self::Single { .. } | Self::Sentinel(_) => true,
            Self::Cluster(cluster) => cluster.listens(slot),
        }
    }

    /// Subscribes to them.
    pub(super) async fn listen(&self, slot: u16) -> Result<()> {
        match self {
            Self::Single { .. } | Self::Sentinel(_) => Ok(()),
            Self::Cluster(cluster) => cluster.listen(slot).await,
        }
    }

    /// All servers that have locks.
    pub(super) async fn masters(&self) -> Result<Vec<Arc<Server>>> {
        match self {
            Self::Single { server, .. } => Ok(vec![server.clone()]),
            Self::Sentinel(sentinel) => Ok(vec![sentinel.master().await?.server.clone()]),
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }
}

async fn each_slot<T, A, F: Future<Output = Result<Vec<A>>>>(
    items: Vec<Located<T>>,
    ask: impl Fn(Vec<Located<T>>) -> F,
) -> Result<Vec<A>> {
    let count = items.len();
    let mut slots: BTreeMap<u16, (Vec<usize>, Vec<Located<T>>)> = BTreeMap::new();
    for (place, item) in items.into_iter().enumerate() {
        let (places, items) = slots.entry(item.0.slot).or_default();
        places.push(place);
        items.push(item);
    }
    let asking = slots.into_values().map(|(places, items)| {
        let asking = ask(items);
        async move { (places, asking.await) }
    });
    let mut answers = BTreeMap::new();
    let mut failures = Vec::new();
    for (places, answered) in join_all(asking).await {
        match answered {
            Ok(some) => answers.extend(places.into_iter().zip(some)),
            Err(error) => failures.push(error),
        }
    }
    if failures.is_empty() && answers.len() == count {
        return Ok(answers.into_values().collect());
    }
    Err(partly(failures))
}

/// Some slots answered and some did not, and there is one answer for all. Where nothing is
/// left in the dark, everybody asks again alone: the scripts give the same owner the same.
fn partly(mut failures: Vec<Error>) -> Error {
    let unknown = failures.iter().position(|error| error.outcome() != Outcome::NotApplied);
    match unknown {
        Some(unknown) => failures.swap_remove(unknown),
        None => Error::new(ErrorKind::RetryAlone, "a part of the cluster did not do its part"),
    }
}
