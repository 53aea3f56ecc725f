//! Connections to servers: our own, or the driver's where TLS or a sentinel is behind them.
//!
//! Nothing else knows of the two. The driver's futures are large, and would make those of all
//! requests so: they are boxed.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo,
    ProtocolVersion, PushInfo, PushKind, RedisConnectionInfo, RedisResult, TlsCertificates, Value,
};

use super::script::Request;
use super::url::{Host, Login, Settings};
use super::waiters::Waiters;
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use own::OwnConnection;
pub(super) use own::{Heard, OnHeard};

mod own;
mod resp;

/// The most requests that wait for the driver's task.
const PIPELINE: usize = 1024;

/// What every connection of a store needs.
pub(crate) struct Connector {
    pub(super) settings: Settings,
    certificates: Option<TlsCertificates>,
    pub(super) clock: Clock,
    pub(super) waiters: Arc<Waiters>,
}

impl Connector {
    pub(crate) fn new(
        settings: &Settings,
        clock: &Clock,
        waiters: &Arc<Waiters>,
    ) -> Result<Arc<Self>> {
        let certificates = match &settings.tls {
            None => None,
            Some(tls) => {
                // This fails if a provider is installed already; that one is used then.
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
        Ok(Arc::new(Self { settings, certificates, clock, waiters }))
    }

    /// The way to a server of the store.
    pub(super) fn to_server(&self, host: &Host) -> RedisResult<Client> {
        let redis = signed_in(&self.settings.login).set_db(self.settings.database);
        self.client(host, redis.set_protocol(ProtocolVersion::RESP3))
    }

    /// The way to a sentinel, in the protocol that all of them speak.
    pub(super) fn to_sentinel(&self, host: &Host) -> RedisResult<Client> {
        self.client(host, signed_in(&self.settings.sentinel_login))
    }

    fn client(&self, host: &Host, redis: RedisConnectionInfo) -> RedisResult<Client> {
        let (host, port) = (host.name.clone(), host.port);
        let address = match self.certificates {
            None => ConnectionAddr::Tcp(host, port),
            Some(_) => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let tcp = TcpSettings::default().set_nodelay(true);
        let info = address.into_connection_info()?.set_tcp_settings(tcp).set_redis_settings(redis);
        match &self.certificates {
            None => Client::open(info),
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        }
    }

    /// Connects to a server, or to a sentinel, which sends no messages.
    pub(super) async fn connect(
        &self,
        client: &Client,
        on_heard: Option<OnHeard>,
    ) -> RedisResult<Connection> {
        let info = client.get_connection_info();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.settings.timeout))
            // The core times every request itself.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        let config = match (info.addr(), on_heard) {
            (ConnectionAddr::Tcp(host, port), Some(on_heard)) => {
                let address = (host.as_str(), *port);
                let opening = OwnConnection::open(address, info.redis_settings(), on_heard);
                return opening.await.map(Connection::Own);
            }
            (_, Some(on_heard)) => config.set_push_sender(pushed_to(on_heard)),
            (_, None) => config,
        };
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        connecting.await.map(Connection::Driver)
    }
}

/// Passes on what a server pushes to the driver's connection.
fn pushed_to(on_heard: OnHeard) -> impl Fn(PushInfo) -> Result<(), ()> {
    move |push| {
        match push.kind {
            PushKind::Message | PushKind::SMessage => {
                if let Some(Value::BulkString(message)) = push.data.get(1) {
                    on_heard(Heard::Message(message));
                }
            }
            // Nobody here unsubscribes: a slot has moved, and the driver takes this for the
            // answer to a request. What comes after it cannot be trusted.
            PushKind::Disconnection | PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                on_heard(Heard::Ended);
            }
            _ => {}
        }
        Ok(())
    }
}

fn signed_in(login: &Login) -> RedisConnectionInfo {
    let version = env!("CARGO_PKG_VERSION");
    let mut info = RedisConnectionInfo::default().set_lib_name("leasehold", version);
    if let Some(user) = &login.user {
        info = info.set_username(user);
    }
    if let Some(password) = &login.password {
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

#[derive(Clone)]
pub(crate) enum Connection {
    Own(OwnConnection),
    Driver(MultiplexedConnection),
}

impl Connection {
    /// Asks once.
    pub(super) async fn ask(&mut self, request: &Request) -> RedisResult<Value> {
        match self {
            Self::Own(own) => own.ask(request).await,
            Self::Driver(driver) => Box::pin(request.command().query_async(driver)).await,
        }
    }

    /// Asks in this order, with nothing between.
    pub(super) async fn ask_all(&mut self, requests: &[Request]) -> RedisResult<Vec<Value>> {
        match self {
            Self::Own(own) => own.ask_all(requests).await,
            Self::Driver(driver) => {
                let mut commands = redis::pipe();
                for request in requests {
                    commands.add_command(request.command());
                }
                Box::pin(async move { commands.query_async(driver).await }).await
            }
        }
    }

    pub(super) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Own(own) => own.ask(&Request::of(&["SUBSCRIBE", channel])).await.map(drop),
            Self::Driver(driver) => Box::pin(driver.subscribe(channel)).await,
        }
    }
}
