//! One server: its connection, made when it is first needed and again when it is lost.
//!
//! Requests are never sent twice. While the server is away they fail at once. A connection
//! on which a request got no answer is probed, and replaced if it is silent: a broken path
//! may stay open for many minutes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::timeout;

use super::connection::{
    Connection, ConnectionError, Connector, Heard, OnHeard, Peer, Request, Value,
};
use super::error::{Failure, not_connected};
use super::script::{Call, Script, text};
use super::url::Host;
use crate::backend::kit::reconnect::{Connected, Reconnect};
use crate::error::{Error, ErrorKind, Result};

/// How long a failed attempt to connect answers later requests.
const FAILS_FAST_FOR: Duration = Duration::from_millis(100);

/// In a marker: the server syncs every write before it answers.
pub(crate) const KEEPS: &str = "+";
/// In a marker: it does not.
const FORGETS: &str = "-";

/// One server.
pub(crate) struct Server {
    pub(crate) host: Host,
    connector: Arc<Connector>,
    role: Role,
    present: Reconnect<Live>,
    connected_before: AtomicBool,
    /// Counts the events after which a request may overtake an earlier one.
    reorderings: AtomicU64,
}

/// What a server is needed for.
pub(crate) enum Role {
    /// Requests, and the messages of this channel.
    Everything { channel: String },
    /// The same, but only if it says itself that it is a master.
    Master { channel: String },
    /// The same, of a node of a redlock: before anything else it is asked whether it has been
    /// restarted since it last voted.
    Voter { channel: String, marker: String, status: &'static Script },
    /// Requests, and messages that are subscribed to later.
    Requests,
    /// Questions about masters.
    Sentinel,
}

/// A connection that worked when it was last heard of.
#[derive(Clone)]
pub(crate) struct Live {
    connection: Connection,
    health: Arc<Health>,
    /// Of a voter: whether it [`KEEPS`] every write.
    pub(crate) keeps: &'static str,
}

#[derive(Default)]
struct Health {
    ended: AtomicBool,
    probed: AtomicBool,
}

impl Live {
    /// Whether this is the same connection.
    pub(super) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }

    fn end(&self) {
        self.health.ended.store(true, Ordering::Release);
    }
}

impl Connected for Live {
    fn is_open(&self) -> bool {
        !self.health.ended.load(Ordering::Acquire)
    }
}

impl Server {
    pub(crate) fn new(connector: &Arc<Connector>, host: &Host, role: Role) -> Arc<Self> {
        Arc::new(Self {
            host: host.clone(),
            present: Reconnect::new(connector.clock.clone(), FAILS_FAST_FOR),
            connector: connector.clone(),
            role,
            connected_before: AtomicBool::new(false),
            reorderings: AtomicU64::new(0),
        })
    }

    /// While this stays the same, requests arrive in the order in which they are sent. It
    /// changes before a request may overtake an earlier one: with every new connection, and
    /// when a script is sent again because the server did not know it.
    pub(crate) fn reorderings(&self) -> u64 {
        self.reorderings.load(Ordering::Acquire)
    }

    /// Calls a script, and loads it first if the server does not know it.
    pub(crate) async fn call(self: &Arc<Self>, call: &Call) -> Result<Value, Failure> {
        match self.ask(&call.request).await {
            Err(failure) if failure.code() == Some("NOSCRIPT") => {
                self.reorderings.fetch_add(1, Ordering::AcqRel);
                let answers = Box::pin(self.ask_all(&call.with_script())).await;
                answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
            }
            answer => answer,
        }
    }

    /// The same at a node that is just getting the slot.
    pub(super) async fn call_asking(self: &Arc<Self>, call: &Call) -> Result<Value, Failure> {
        let requests = [Request::of(&["ASKING"]), call.request.clone()];
        let mut answers = self.ask_with_script(call, &requests).await?;
        Ok(answers.pop().unwrap_or(Value::Nil))
    }

    /// Sends these requests in order. If the server does not know the script of this call, it is
    /// loaded first, and the answer to that comes before the others.
    pub(super) async fn ask_with_script(
        self: &Arc<Self>,
        call: &Call,
        requests: &[Request],
    ) -> Result<Vec<Value>, Failure> {
        match self.ask_all(requests).await {
            Err(failure) if failure.code() == Some("NOSCRIPT") => {
                self.ask_all(&[&[call.loading()][..], requests].concat()).await
            }
            answers => answers,
        }
    }

    /// Asks the server, once.
    async fn ask(self: &Arc<Self>, request: &Request) -> Result<Value, Failure> {
        let live = self.live().await.map_err(Failure::NotSent)?;
        let asked = Asked { server: self, live, answered: false };
        let answer = asked.live.connection.ask(request).await;
        asked.answered(answer)
    }

    /// The same for questions that nobody else times.
    pub(crate) async fn ask_in_time(self: &Arc<Self>, words: &[&str]) -> Result<Value, Failure> {
        let (limit, request) = (self.connector.settings.timeout, Request::of(words));
        timeout(limit, self.ask(&request)).await.unwrap_or_else(|_| Err(Failure::silent()))
    }

    /// The same for several requests, in one go and in this order.
    pub(super) async fn ask_all(
        self: &Arc<Self>,
        requests: &[Request],
    ) -> Result<Vec<Value>, Failure> {
        let live = self.live().await.map_err(Failure::NotSent)?;
        self.ask_all_on(live, requests).await
    }

    /// The same on this connection.
    pub(crate) async fn ask_all_on(
        self: &Arc<Self>,
        live: Live,
        requests: &[Request],
    ) -> Result<Vec<Value>, Failure> {
        let asked = Asked { server: self, live, answered: false };
        let answer = asked.live.connection.ask_all(requests).await;
        asked.answered(answer)
    }

    /// Subscribes this connection to a channel of a shard. The connection survives a refusal.
    pub(super) async fn listen(&self, live: &Live, channel: &str) -> Result<(), Failure> {
        match live.connection.ask(&Request::of(&["SSUBSCRIBE", channel])).await {
            Ok(_) => Ok(()),
            Err(error @ ConnectionError::Refused(_)) => Err(Failure::of(error)),
            Err(error) => {
                self.give_up(live);
                Err(Failure::NotSent(not_connected(&self.host, Peer::Server, error)))
            }
        }
    }

    /// Forgets this connection: the next request makes another.
    fn give_up(&self, live: &Live) {
        live.end();
        self.present.drop_closed();
    }

    /// Ends the present connection, if there is one.
    pub(super) fn disconnect(&self) {
        if let Some(live) = self.present.take() {
            live.end();
        }
    }

    /// A connection that works.
    pub(crate) async fn live(&self) -> Result<Live> {
        self.present.get(|| self.connect_in_time()).await
    }

    async fn connect_in_time(&self) -> Result<Live> {
        let limit = self.connector.settings.timeout;
        let connected = timeout(limit, self.connect()).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {limit:?}", self.host);
            Err(Error::new(ErrorKind::Unreachable, message).not_applied())
        })?;
        self.reorderings.fetch_add(1, Ordering::AcqRel);
        if self.connected_before.swap(true, Ordering::AcqRel) {
            self.connector.waiters.reconnected();
        }
        Ok(connected)
    }

    async fn connect(&self) -> Result<Live> {
        let health = Arc::<Health>::default();
        let peer = match self.role {
            Role::Sentinel => Peer::Sentinel,
            _ => Peer::Server,
        };
        let failed = |error| not_connected(&self.host, peer, error);
        let connecting = self.connector.connect(&self.host, peer, self.on_heard(&health));
        let connection = connecting.await.map_err(failed)?;
        if let Role::Master { .. } = self.role {
            let said = connection.ask(&Request::of(&["ROLE"])).await.map_err(failed)?;
            if !is_master(&said) {
                let message = format!("{} is no master (any more)", self.host);
                return Err(Error::new(ErrorKind::Unreachable, message).not_applied());
            }
        }
        let mut keeps = FORGETS;
        if let Role::Voter { marker, status, .. } = &self.role {
            keeps = if keeps_every_write(&connection).await { KEEPS } else { FORGETS };
            let mut arrival = Call::new(status, 0, 1);
            arrival.arg(marker).arg("arrive").arg("").arg(keeps);
            connection.ask_all(&arrival.with_script()).await.map_err(failed)?;
        }
        if let Role::Everything { channel }
        | Role::Master { channel }
        | Role::Voter { channel, .. } = &self.role
        {
            connection.ask(&Request::of(&["SUBSCRIBE", channel])).await.map_err(failed)?;
        }
        Ok(Live { connection, health, keeps })
    }

    /// Passes messages on to the waiters, and notes the end of the connection. (That to a sentinel
    /// is nothing to them.)
    fn on_heard(&self, health: &Arc<Health>) -> OnHeard {
        let (waiters, health) = (self.connector.waiters.clone(), health.clone());
        let grants = !matches!(self.role, Role::Sentinel);
        Box::new(move |heard| match heard {
            Heard::Message(message) => waiters.heard(message),
            Heard::Ended => {
                health.ended.store(true, Ordering::Release);
                if grants {
                    waiters.disconnected();
                }
            }
        })
    }

    /// Finds out whether a silent connection still works.
    fn probe(self: &Arc<Self>, live: &Live) {
        let Ok(runtime) = Handle::try_current() else { return };
        if !live.is_open() || live.health.probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (server, live) = (self.clone(), live.clone());
        runtime.spawn(async move {
            let ping = Request::of(&["PING"]);
            let asking = live.connection.ask(&ping);
            let limit = server.connector.settings.timeout;
            let silent = !matches!(timeout(limit, asking).await, Ok(Ok(_)));
            live.health.probed.store(false, Ordering::Release);
            if silent {
                server.give_up(&live);
                server.connector.waiters.disconnected();
            }
        });
    }
}

/// A request under way. Dropped without an answer, it makes its connection suspect.
struct Asked<'a> {
    server: &'a Arc<Server>,
    live: Live,
    answered: bool,
}

impl Asked<'_> {
    fn answered<T>(mut self, answer: Result<T, ConnectionError>) -> Result<T, Failure> {
        self.answered = true;
        answer.map_err(|error| {
            let failure = Failure::of(error);
            // The master has become a replica: the name may lead elsewhere by now.
            if matches!(failure, Failure::Unanswered(_)) || failure.code() == Some("READONLY") {
                self.server.give_up(&self.live);
            }
            failure
        })
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.server.probe(&self.live);
        }
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("host", &self.host).finish_non_exhaustive()
    }
}

/// Whether the server syncs every write before it answers. If it does not tell, it may not.
async fn keeps_every_write(connection: &Connection) -> bool {
    let wanted =
        [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];
    for (setting, wanted) in wanted {
        let said = connection.ask(&Request::of(&["CONFIG", "GET", setting])).await;
        let said = said.ok().and_then(|said| value_of(&said));
        if said.as_deref() != Some(wanted) {
            return false;
        }
    }
    true
}

/// What the answer to `CONFIG GET` of one setting says.
pub(super) fn value_of(answer: &Value) -> Option<String> {
    let value = match answer {
        Value::Map(pairs) => pairs.first().map(|(_, value)| value),
        Value::Array(pair) => pair.get(1),
        _ => None,
    };
    value.and_then(|value| text(value).ok().map(Into::into))
}

/// Whether this is what a master answers to `ROLE`.
fn is_master(role: &Value) -> bool {
    let Value::Array(parts) = role else { return false };
    parts.first().is_some_and(|word| text(word).ok() == Some("master"))
}
