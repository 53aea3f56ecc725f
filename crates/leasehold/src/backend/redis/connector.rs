//! From settings to servers.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisResult, TlsCertificates,
};

use super::error::not_connected;
use super::server::{Role, Server};
use super::url::{Host, Login, Settings};
use super::waiters::Waiters;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};

/// What every connection of a store needs.
pub(in crate::backend) struct Connector {
    pub(in crate::backend) settings: Settings,
    certificates: Option<TlsCertificates>,
    pub(in crate::backend) clock: Clock,
    pub(in crate::backend) waiters: Arc<Waiters>,
}

impl Connector {
    pub(in crate::backend) fn new(
        settings: &Settings,
        clock: &Clock,
        waiters: &Arc<Waiters>,
    ) -> Result<Self> {
        let certificates = match &settings.tls {
            None => None,
            Some(tls) => {
                // Fails if there is one already, which then is used.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let client_tls = match &tls.identity {
                    None => None,
                    Some((certificate, key)) => Some(ClientTlsConfig {
                        client_cert: read(certificate)?,
                        client_key: read(key)?,
                    }),
                };
                let root_cert = tls.ca.as_deref().map(read).transpose()?;
                Some(TlsCertificates { client_tls, root_cert })
            }
        };
        let (settings, clock, waiters) = (settings.clone(), clock.clone(), waiters.clone());
        Ok(Self { settings, certificates, clock, waiters })
    }

    /// A server of the store.
    pub(in crate::backend) fn server(&self, host: &Host, role: Role) -> Result<Arc<Server>> {
        let redis = signed_in(&self.settings.login).set_db(self.settings.database);
        let client = self.client(host, redis.set_protocol(ProtocolVersion::RESP3));
        self.build(host, client, role)
    }

    /// A sentinel, to ask it.
    pub(in crate::backend) fn sentinel(&self, host: &Host) -> Result<Arc<Server>> {
        self.build(host, self.sentinel_client(host), Role::Sentinel)
    }

    /// A sentinel, to listen to it.
    pub(in crate::backend) fn sentinel_client(&self, host: &Host) -> RedisResult<Client> {
        self.client(host, signed_in(&self.settings.sentinel_login))
    }

    fn client(&self, host: &Host, redis: RedisConnectionInfo) -> RedisResult<Client> {
        let address = match self.certificates {
            None => ConnectionAddr::Tcp(host.name.clone(), host.port),
            Some(_) => ConnectionAddr::TcpTls {
                host: host.name.clone(),
                port: host.port,
                insecure: false,
                tls_params: None,
            },
        };
        let info = address.into_connection_info()?;
        let info = info
            .set_tcp_settings(TcpSettings::default().set_nodelay(true))
            .set_redis_settings(redis);
        match &self.certificates {
            None => Client::open(info),
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        }
    }

    fn build(&self, host: &Host, client: RedisResult<Client>, role: Role) -> Result<Arc<Server>> {
        let failed = |error| not_connected(&host.to_string(), role.login(), error);
        let client = client.map_err(failed)?;
        let timeout = self.settings.timeout;
        let (clock, waiters) = (self.clock.clone(), self.waiters.clone());
        Ok(Server::new(host.clone(), client, timeout, clock, waiters, role))
    }
}

fn signed_in(credentials: &Login) -> RedisConnectionInfo {
    let version = env!("CARGO_PKG_VERSION");
    let mut info = RedisConnectionInfo::default().set_lib_name("leasehold", version);
    if let Some(user) = &credentials.user {
        info = info.set_username(user);
    }
    if let Some(password) = &credentials.password {
        info = info.set_password(password);
    }
    info
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(|error| {
        let message = format!("cannot read {}", path.display());
        Error::new(ErrorKind::Invalid, message).caused_by(error)
    })
}
