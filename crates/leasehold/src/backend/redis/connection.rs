//! Connections to servers and sentinels, over TLS or not: opened, signed in, asked.
//!
//! Nothing outside of this folder knows the protocol or TLS.

use std::io;
use std::slice;
use std::sync::Arc;

use rustls::ClientConfig;
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::url::{Host, Login, Settings};
use super::waiters::Waiters;
use crate::backend::kit;
use crate::clock::Clock;
use crate::error::Result;
pub(super) use request::Request;
use socket::{Answer, Socket};
pub(super) use socket::{Heard, OnHeard};
use tls::Layer;
pub(crate) use value::{Refusal, Value};

mod request;
mod resp;
mod socket;
mod tls;
mod value;

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum ConnectionError {
    /// The connection is as good as before.
    #[error("{0}")]
    Refused(Refusal),
    #[error("{0}")]
    Io(Arc<io::Error>),
    #[error("{0}")]
    Tls(#[from] rustls::Error),
    #[error("the server ended the connection")]
    Closed,
    #[error("the server said something that is none of the protocol's, or answers nothing")]
    Garbage,
    /// Servers before Redis 6 speak no RESP3. (They repeat the password when they say so.)
    #[error("the server knows no HELLO")]
    NoHello,
    #[error("no certificate can have this name")]
    NoName,
}

impl From<io::Error> for ConnectionError {
    fn from(error: io::Error) -> Self {
        Self::Io(Arc::new(error))
    }
}

/// Who is connected to. Each has a user and a password of its own in the URL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Peer {
    /// They are before the `@`.
    Server,
    /// They are options.
    Sentinel,
}

/// What every connection of a store needs.
pub(crate) struct Connector {
    pub(super) settings: Settings,
    tls: Option<Arc<ClientConfig>>,
    pub(super) clock: Clock,
    pub(super) waiters: Arc<Waiters>,
}

impl Connector {
    pub(crate) fn new(
        settings: &Settings,
        clock: &Clock,
        waiters: &Arc<Waiters>,
    ) -> Result<Arc<Self>> {
        let tls = settings.tls.as_ref().map(kit::tls::client).transpose()?;
        let (settings, clock, waiters) = (settings.clone(), clock.clone(), waiters.clone());
        Ok(Arc::new(Self { settings, tls, clock, waiters }))
    }

    /// Connects, and signs in.
    pub(super) async fn connect(
        &self,
        host: &Host,
        peer: Peer,
        on_heard: OnHeard,
    ) -> Result<Connection, ConnectionError> {
        let (login, database) = match peer {
            Peer::Server => (&self.settings.login, self.settings.database),
            Peer::Sentinel => (&self.settings.sentinel_login, 0),
        };
        let layer = self.tls.as_ref().map(|config| Layer::new(config, &host.name)).transpose()?;
        let stream = TcpStream::connect((host.name.as_str(), host.port)).await?;
        let connection = Connection::on(stream, layer, on_heard)?;
        connection.sign_in(login, database).await?;
        Ok(connection)
    }
}

/// A connection. It ends with its last clone.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Handle>);

struct Handle {
    socket: Arc<Socket>,
    /// Reading and writing, which end with it.
    _tasks: JoinSet<()>,
}

impl Connection {
    fn on(
        stream: TcpStream,
        tls: Option<Layer>,
        on_heard: OnHeard,
    ) -> Result<Self, ConnectionError> {
        stream.set_nodelay(true)?;
        let (read, half) = stream.into_split();
        let socket = Socket::new(half, tls, on_heard);
        socket.greet()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(socket.clone().read(read));
        tasks.spawn(socket.clone().write());
        Ok(Self(Arc::new(Handle { socket, _tasks: tasks })))
    }

    async fn sign_in(&self, login: &Login, database: i64) -> Result<(), ConnectionError> {
        let mut hello = vec!["HELLO", "3"];
        if let Some(password) = &login.password {
            hello.extend(["AUTH", login.user.as_deref().unwrap_or("default"), password]);
        }
        let greeting = self.send(&Request::of(&hello))?;
        let selected = match database {
            0 => None,
            database => Some(self.send(&Request::of(&["SELECT", &database.to_string()]))?),
        };
        let names = [("LIB-NAME", "leasehold"), ("LIB-VER", env!("CARGO_PKG_VERSION"))];
        let named =
            names.map(|(what, name)| self.send(&Request::of(&["CLIENT", "SETINFO", what, name])));
        self.answer(greeting).await.map_err(no_hello)?;
        if let Some(selected) = selected {
            self.answer(selected).await?;
        }
        for answer in named {
            match self.answer(answer?).await {
                // Servers before 7.2 know no such thing.
                Ok(_) | Err(ConnectionError::Refused(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Asks once. Dropped, it is still asked, and the answer is for nobody.
    pub(super) async fn ask(&self, request: &Request) -> Result<Value, ConnectionError> {
        self.answer(self.send(request)?).await
    }

    /// Asks in this order, with nothing between.
    pub(super) async fn ask_all(
        &self,
        requests: &[Request],
    ) -> Result<Vec<Value>, ConnectionError> {
        let (tell, told): (Vec<_>, Vec<_>) = requests.iter().map(|_| oneshot::channel()).unzip();
        self.0.socket.send(tell, requests)?;
        let mut answers = Vec::with_capacity(requests.len());
        for answer in told {
            answers.push(self.answer(answer).await);
        }
        answers.into_iter().collect()
    }

    fn send(&self, request: &Request) -> Result<oneshot::Receiver<Answer>, ConnectionError> {
        let (tell, told) = oneshot::channel();
        self.0.socket.send([tell], slice::from_ref(request))?;
        Ok(told)
    }

    async fn answer(&self, told: oneshot::Receiver<Answer>) -> Result<Value, ConnectionError> {
        told.await.map_err(|_| self.0.socket.why())?.map_err(ConnectionError::Refused)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.socket.drop_quietly();
    }
}

fn no_hello(error: ConnectionError) -> ConnectionError {
    match error {
        ConnectionError::Refused(said) if said.detail().starts_with("unknown command") => {
            ConnectionError::NoHello
        }
        error => error,
    }
}

#[cfg(test)]
mod tests;
