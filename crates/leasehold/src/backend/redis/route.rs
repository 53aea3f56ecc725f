//! Which server has a lock.

use std::sync::Arc;

use redis::Value;

use super::cluster::Cluster;
use super::connector::Connector;
use super::info::Info;
use super::replicas::Replicas;
use super::script::Call;
use super::sentinel::Sentinel;
use super::server::{Role, Server};
use super::url::{Deployment, Settings};
use crate::backend::Finding;
use crate::error::{Error, ErrorKind, Result};

/// The way to the servers.
#[derive(Debug)]
pub(in crate::backend) enum Route {
    /// One server has everything; its messages come on this channel.
    One { server: Arc<Server>, replicas: Arc<Replicas>, channel: String },
    /// So does the one that sentinels name.
    Sentinel(Sentinel),
    /// Every slot has a server of its own.
    Cluster(Box<Cluster>),
}

impl Route {
    /// Finds the servers.
    pub(in crate::backend) async fn open(
        settings: &Settings,
        connector: Connector,
        channel: String,
    ) -> Result<Self> {
        match &settings.deployment {
            Deployment::Single => {
                let host = &settings.hosts[0];
                let role = Role::Everything { channel: channel.clone() };
                let server = connector.server(host, role)?;
                let replicas = Replicas::new(connector.server(host, Role::Requests)?);
                Ok(Self::One { server, replicas, channel })
            }
            Deployment::Independent => {
                Err(Error::invalid("independent nodes are a redlock: open it as one"))
            }
            Deployment::Sentinel { master } => {
                let sentinel = Sentinel::new(connector, &settings.hosts, master, channel)?;
                Ok(Self::Sentinel(sentinel))
            }
            Deployment::Cluster => {
                let cluster = Cluster::open(connector, &settings.hosts, channel).await?;
                Ok(Self::Cluster(Box::new(cluster)))
            }
        }
    }

    /// Whether a server is what the URL says.
    pub(in crate::backend) fn check(&self, server: &Server, info: &Info) -> Result<()> {
        let refuse = |message| Err(Error::new(ErrorKind::Refused, message));
        match self {
            Self::Cluster(_) if !info.is_cluster() => refuse(format!(
                "{} belongs to no cluster: write redis:// in place of redis+cluster://",
                server.host
            )),
            Self::One { .. } | Self::Sentinel(_) if info.is_cluster() => refuse(format!(
                "{} belongs to a cluster: write redis+cluster:// in place of redis://",
                server.host
            )),
            Self::One { .. } if !info.is_master() => refuse(format!(
                "{} is a replica: connect to its master, or through redis+sentinel://",
                server.host
            )),
            _ => Ok(()),
        }
    }

    /// What is to be said about the way itself.
    pub(in crate::backend) async fn examine(&self) -> Result<Vec<Finding>> {
        match self {
            Self::One { .. } => Ok(Vec::new()),
            Self::Sentinel(sentinel) => sentinel.examine().await,
            Self::Cluster(cluster) => Ok(cluster.examine()),
        }
    }

    /// The replicas of the server that has this slot.
    pub(in crate::backend) async fn replicas(&self, slot: u16) -> Result<Arc<Replicas>> {
        match self {
            Self::One { replicas, .. } => Ok(replicas.clone()),
            Self::Sentinel(sentinel) => sentinel.replicas().await,
            Self::Cluster(cluster) => cluster.replicas(slot).await,
        }
    }

    /// Whether only the keys of one slot may travel together.
    pub(in crate::backend) fn slots_matter(&self) -> bool {
        matches!(self, Self::Cluster(_))
    }

    /// Calls a script where its keys are.
    pub(in crate::backend) async fn call(&self, call: &Call) -> Result<Value> {
        match self {
            Self::One { server, .. } => Ok(server.call(call).await?),
            // Boxed: with one server, each request's future would be as large as these.
            Self::Sentinel(sentinel) => Box::pin(sentinel.call(call)).await,
            Self::Cluster(cluster) => Box::pin(cluster.call(call)).await,
        }
    }

    /// The channel on which grants of locks in this slot are told, as scripts want it.
    pub(in crate::backend) fn channel(&self, slot: u16) -> String {
        match self {
            Self::One { channel, .. } => format!("P:{channel}"),
            Self::Sentinel(sentinel) => format!("P:{}", sentinel.channel()),
            Self::Cluster(cluster) => cluster.channel(slot),
        }
    }

    /// Whether messages about locks in this slot are heard already.
    pub(in crate::backend) fn listens(&self, slot: u16) -> bool {
        match self {
            Self::One { .. } | Self::Sentinel(_) => true,
            Self::Cluster(cluster) => cluster.listens(slot),
        }
    }

    /// From now on they are heard.
    pub(in crate::backend) async fn listen(&self, slot: u16) -> Result<()> {
        match self {
            Self::One { .. } | Self::Sentinel(_) => Ok(()),
            Self::Cluster(cluster) => cluster.listen(slot).await,
        }
    }

    /// All servers that have locks.
    pub(in crate::backend) async fn masters(&self) -> Result<Vec<Arc<Server>>> {
        match self {
            Self::One { server, .. } => Ok(vec![server.clone()]),
            Self::Sentinel(sentinel) => Ok(vec![sentinel.master().await?]),
            Self::Cluster(cluster) => cluster.masters().await,
        }
    }
}
