//! Which server has a lock.

use std::sync::Arc;

use redis::Value;

use super::connector::Connector;
use super::info::Info;
use super::script::Call;
use super::server::{Role, Server};
use super::url::{Deployment, Settings};
use crate::backend::Finding;
use crate::error::{Error, ErrorKind, Result};

/// The way to the servers.
#[derive(Debug)]
pub(super) enum Route {
    /// One server has everything; its messages come on this channel.
    One { server: Arc<Server>, replicas: Arc<Server>, channel: String },
}

impl Route {
    /// Finds the servers.
    pub(super) async fn open(
        settings: &Settings,
        connector: Connector,
        channel: String,
    ) -> Result<Self> {
        match &settings.deployment {
            Deployment::Single => {
                let host = &settings.hosts[0];
                let role = Role::Everything { channel: channel.clone() };
                let server = connector.server(host, role)?;
                let replicas = connector.server(host, Role::Requests)?;
                Ok(Self::One { server, replicas, channel })
            }
            _ => Err(Error::invalid("not yet")),
        }
    }

    /// Whether a server is what the URL says.
    pub(super) fn check(&self, server: &Server, info: &Info) -> Result<()> {
        let refuse = |message| Err(Error::new(ErrorKind::Refused, message));
        match self {
            Self::One { .. } if info.is_cluster() => refuse(format!(
                "{} belongs to a cluster: write redis+cluster:// in place of redis://",
                server.host
            )),
            Self::One { .. } if !info.is_master() => refuse(format!(
                "{} is a replica: connect to its master, or through redis+sentinel://",
                server.host
            )),
            Self::One { .. } => Ok(()),
        }
    }

    /// What is to be said about the way itself.
    pub(super) async fn examine(&self) -> Result<Vec<Finding>> {
        match self {
            Self::One { .. } => Ok(Vec::new()),
        }
    }

    /// A connection to the server of this slot that may be kept waiting.
    pub(super) async fn waits_for_replicas(&self, _slot: u16) -> Result<Arc<Server>> {
        match self {
            Self::One { replicas, .. } => Ok(replicas.clone()),
        }
    }

    /// Whether only the keys of one slot may travel together.
    pub(super) fn slots_matter(&self) -> bool {
        match self {
            Self::One { .. } => false,
        }
    }

    /// Calls a script where its keys are.
    pub(super) async fn call(&self, call: &Call) -> Result<Value> {
        match self {
            Self::One { server, .. } => Ok(server.call(call).await?),
        }
    }

    /// The channel on which grants of locks in this slot are told, as scripts want it.
    pub(super) fn channel(&self, _slot: u16) -> String {
        match self {
            Self::One { channel, .. } => format!("P:{channel}"),
        }
    }

    /// Whether messages about locks in this slot are heard already.
    pub(super) fn listens(&self, _slot: u16) -> bool {
        match self {
            Self::One { .. } => true,
        }
    }

    /// From now on they are heard.
    pub(super) async fn listen(&self, _slot: u16) -> Result<()> {
        match self {
            Self::One { .. } => Ok(()),
        }
    }

    /// All servers that have locks.
    pub(super) async fn masters(&self) -> Result<Vec<Arc<Server>>> {
        match self {
            Self::One { server, .. } => Ok(vec![server.clone()]),
        }
    }
}
