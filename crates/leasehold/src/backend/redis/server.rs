//! One server: its connection, made when it is first needed and again when it is lost.
//!
//! Requests are never sent twice. While the server is away they fail at once. A connection
//! on which a request got no answer is probed, and replaced if it is silent: a broken path
//! may stay open for many minutes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, PushInfo, PushKind, RedisResult, Value,
};
use tokio::runtime::Handle;
use tokio::time::timeout;

use super::connection::Connection;
use super::error::{Failure, Login, not_connected};
use super::info::value_of;
use super::request::Request;
use super::script::{Call, Script};
use super::url::Host;
use super::waiters::Waiters;
use super::wire::{Heard, Wire};
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// How long a failed attempt to connect speaks for those that follow.
const FAILS_FAST_FOR: Duration = Duration::from_millis(100);
/// How many requests may wait for the connection's own task.
const PIPELINE: usize = 1024;

/// Of a server that syncs every write before it answers, in markers.
pub(in crate::backend) const KEEPS: &str = "+";
/// Of one that does not.
const FORGETS: &str = "-";

/// One server.
pub(in crate::backend) struct Server {
    pub(in crate::backend) host: Host,
    client: Client,
    timeout: Duration,
    clock: Clock,
    waiters: Arc<Waiters>,
    role: Role,
    state: Mutex<State>,
    connecting: tokio::sync::Mutex<()>,
    /// How often requests may have come to overtake each other.
    reorderings: AtomicU64,
}

/// What a server is needed for.
#[derive(Debug, Clone)]
pub(in crate::backend) enum Role {
    /// Requests, and the messages of this channel.
    Everything { channel: String },
    /// The same, but only if it says itself that it is a master.
    Master { channel: String },
    /// The same, of a node of a redlock: before anything else it is asked whether it has been
    /// restarted since it last voted.
    Voter { channel: String, marker: String, standing: &'static Script },
    /// Requests, and messages that are subscribed to later.
    Requests,
    /// Questions about masters, in the protocol that all sentinels speak.
    Sentinel,
}

impl Role {
    /// Where the URL has its user and password.
    pub(in crate::backend) fn login(&self) -> Login {
        match self {
            Self::Sentinel => Login::Sentinel,
            Self::Everything { .. } | Self::Master { .. } | Self::Voter { .. } | Self::Requests => {
                Login::Server
            }
        }
    }
}

#[derive(Default)]
struct State {
    live: Option<Live>,
    failed: Option<(Moment, Error)>,
    connected_before: bool,
}

/// A connection that worked when it was last heard of.
#[derive(Clone)]
pub(in crate::backend) struct Live {
    pub(in crate::backend) connection: Connection,
    health: Arc<Health>,
    /// Of a voter: whether it [`KEEPS`] every write.
    pub(in crate::backend) keeps: &'static str,
}

#[derive(Default)]
struct Health {
    ended: AtomicBool,
    probed: AtomicBool,
}

impl Live {
    pub(in crate::backend) fn ended(&self) -> bool {
        self.health.ended.load(Ordering::Acquire)
    }

    /// Whether this is the same connection.
    pub(in crate::backend) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.health, &other.health)
    }
}

impl fmt::Debug for Live {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Live").field("ended", &self.ended()).finish_non_exhaustive()
    }
}

impl Server {
    pub(in crate::backend) fn new(
        host: Host,
        client: Client,
        timeout: Duration,
        clock: Clock,
        waiters: Arc<Waiters>,
        role: Role,
    ) -> Arc<Self> {
        let state = Mutex::default();
        let connecting = tokio::sync::Mutex::default();
        let reorderings = AtomicU64::new(0);
        Arc::new(Self {
            host,
            client,
            timeout,
            clock,
            waiters,
            role,
            state,
            connecting,
            reorderings,
        })
    }

    /// While this stays the same, requests arrive in the order in which they are sent. It
    /// changes before a request may overtake an earlier one: with every new connection, and
    /// when a script is sent again because the server did not know it.
    pub(in crate::backend) fn reorderings(&self) -> u64 {
        self.reorderings.load(Ordering::Acquire)
    }

    /// Calls a script, which the server may have to be told first.
    pub(in crate::backend) async fn call(self: &Arc<Self>, call: &Call) -> Result<Value, Failure> {
        match self.request(&call.request).await {
            Err(failure) if failure.code() == Some("NOSCRIPT") => {
                self.reorderings.fetch_add(1, Ordering::AcqRel);
                let answers = Box::pin(self.ask_all(&call.with_script())).await;
                answers.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
            }
            answer => answer,
        }
    }

    /// The same at a node that is just getting the slot.
    pub(in crate::backend) async fn call_asking(
        self: &Arc<Self>,
        call: &Call,
    ) -> Result<Value, Failure> {
        let asking = |mut commands: redis::Pipeline| {
            commands.cmd("ASKING").ignore().add_command(call.request.command());
            commands
        };
        let mut answer = self.ask_all(&asking(redis::pipe())).await;
        if answer.as_ref().is_err_and(|failure| failure.code() == Some("NOSCRIPT")) {
            answer = self.ask_all(&asking(loading(call))).await;
        }
        answer.map(|mut answers| answers.pop().unwrap_or(Value::Nil))
    }

    async fn request(self: &Arc<Self>, request: &Request) -> Result<Value, Failure> {
        let live = self.live().await.map_err(Failure::NotSent)?;
        let mut asked = Asked { server: self, live, answered: false };
        let answer = asked.live.connection.request(request).await;
        asked.answered = true;
        answer.map_err(|error| self.judge(&asked.live, error))
    }

    /// Asks the server, once.
    pub(in crate::backend) async fn ask(self: &Arc<Self>, command: &Cmd) -> Result<Value, Failure> {
        let live = self.live().await.map_err(Failure::NotSent)?;
        let mut asked = Asked { server: self, live, answered: false };
        let answer = asked.live.connection.ask(command).await;
        asked.answered = true;
        answer.map_err(|error| self.judge(&asked.live, error))
    }

    /// The same for several commands, in one go and in this order.
    pub(in crate::backend) async fn ask_all(
        self: &Arc<Self>,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        let live = self.live().await.map_err(Failure::NotSent)?;
        self.ask_all_on(live, commands).await
    }

    /// The same on this connection.
    pub(in crate::backend) async fn ask_all_on(
        self: &Arc<Self>,
        live: Live,
        commands: &redis::Pipeline,
    ) -> Result<Vec<Value>, Failure> {
        let mut asked = Asked { server: self, live, answered: false };
        let answer = asked.live.connection.ask_all(commands).await;
        asked.answered = true;
        answer.map_err(|error| self.judge(&asked.live, error))
    }

    /// For questions that nobody else times.
    pub(in crate::backend) async fn ask_in_time(
        self: &Arc<Self>,
        command: &Cmd,
    ) -> Result<Value, Failure> {
        timeout(self.timeout, self.ask(command)).await.unwrap_or_else(|_| Err(Failure::silent()))
    }

    fn judge(&self, live: &Live, error: redis::RedisError) -> Failure {
        let failure = Failure::of(error);
        // What was a master has become a replica: the name may lead elsewhere by now.
        if matches!(failure, Failure::Unanswered(_)) || failure.code() == Some("READONLY") {
            self.give_up(live);
        }
        failure
    }

    /// Forgets this connection: the next request makes another.
    pub(in crate::backend) fn give_up(&self, live: &Live) {
        live.health.ended.store(true, Ordering::Release);
        let mut state = self.state.lock();
        if state.live.as_ref().is_some_and(Live::ended) {
            state.live = None;
        }
    }

    /// The present connection, if there is one: the one that is just ending as well.
    pub(in crate::backend) fn disconnect(&self) {
        let live = self.state.lock().live.take();
        if let Some(live) = live {
            live.health.ended.store(true, Ordering::Release);
        }
    }

    fn present(&self) -> Option<Live> {
        self.state.lock().live.as_ref().filter(|live| !live.ended()).cloned()
    }

    /// A connection that works.
    pub(in crate::backend) async fn live(&self) -> Result<Live> {
        match self.present() {
            Some(live) => Ok(live),
            // What is rare must not make the future larger that each request moves.
            None => Box::pin(self.another()).await,
        }
    }

    async fn another(&self) -> Result<Live> {
        let _alone = self.connecting.lock().await;
        if let Some(live) = self.present() {
            return Ok(live);
        }
        if let Some((at, error)) = &self.state.lock().failed
            && at.until(self.clock.now()) < FAILS_FAST_FOR
        {
            return Err(error.clone());
        }
        let connected = timeout(self.timeout, self.connect()).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {:?}", self.host, self.timeout);
            Err(Error::new(ErrorKind::Unreachable, message))
        });
        let again = {
            let mut state = self.state.lock();
            match &connected {
                Ok(live) => {
                    self.reorderings.fetch_add(1, Ordering::AcqRel);
                    state.live = Some(live.clone());
                    state.failed = None;
                    std::mem::replace(&mut state.connected_before, true)
                }
                Err(error) => {
                    state.failed = Some((self.clock.now(), error.clone()));
                    false
                }
            }
        };
        if again {
            self.waiters.reconnected();
        }
        connected
    }

    async fn connect(&self) -> Result<Live> {
        let health = Arc::<Health>::default();
        let address = self.host.to_string();
        let failed = |error| not_connected(&address, self.role.login(), error);
        let info = self.client.get_connection_info();
        let mut connection = match (info.addr(), &self.role) {
            (ConnectionAddr::Tcp(host, port), role) if !matches!(role, Role::Sentinel) => {
                let ears = Box::new(self.ears(&health));
                let opening = Wire::open((host, *port), info.redis_settings(), ears);
                Connection::Own(opening.await.map_err(failed)?)
            }
            _ => self.by_the_driver(&health).await.map_err(failed)?,
        };
        if let Role::Master { .. } = self.role {
            let said = connection.ask(&redis::cmd("ROLE")).await.map_err(failed)?;
            if !is_master(&said) {
                let message = format!("{address} is no master (any more)");
                return Err(Error::new(ErrorKind::Unreachable, message));
            }
        }
        let mut keeps = FORGETS;
        if let Role::Voter { marker, standing, .. } = &self.role {
            keeps = if keeps_every_write(&mut connection).await { KEEPS } else { FORGETS };
            let mut arrival = Call::new(standing, 0, 1);
            arrival.arg(marker).arg("arrive").arg("").arg(keeps);
            connection.ask_all(&arrival.with_script()).await.map_err(failed)?;
        }
        if let Role::Everything { channel }
        | Role::Master { channel }
        | Role::Voter { channel, .. } = &self.role
        {
            connection.subscribe(channel).await.map_err(failed)?;
        }
        Ok(Live { connection, health, keeps })
    }

    /// What becomes of what is heard.
    fn ears(&self, health: &Arc<Health>) -> impl Fn(Heard<'_>) + Send + Sync + use<> {
        let (waiters, health) = (self.waiters.clone(), health.clone());
        move |heard| match heard {
            Heard::Message(message) => waiters.heard(message),
            Heard::Ended => {
                health.ended.store(true, Ordering::Release);
                waiters.disconnected();
            }
        }
    }

    async fn by_the_driver(&self, health: &Arc<Health>) -> RedisResult<Connection> {
        let ears = self.ears(health);
        let heard = move |push: PushInfo| -> Result<(), ()> {
            match push.kind {
                PushKind::Message | PushKind::SMessage => {
                    if let Some(Value::BulkString(message)) = push.data.get(1) {
                        ears(Heard::Message(message));
                    }
                }
                // Nobody here unsubscribes: a slot has moved, and the driver takes this for the
                // answer to a request. What comes after it cannot be trusted.
                PushKind::Disconnection | PushKind::Unsubscribe | PushKind::SUnsubscribe => {
                    ears(Heard::Ended);
                }
                _ => {}
            }
            Ok(())
        };
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(self.timeout))
            // The core times every request itself.
            .set_response_timeout(None)
            .set_pipeline_buffer_size(PIPELINE);
        let config = match self.role {
            Role::Sentinel => config,
            _ => config.set_push_sender(heard),
        };
        let connecting = self.client.get_multiplexed_async_connection_with_config(&config);
        connecting.await.map(Connection::Driver)
    }

    /// Finds out whether a silent connection still works.
    fn probe(self: &Arc<Self>, live: &Live) {
        let Ok(runtime) = Handle::try_current() else { return };
        if live.ended() || live.health.probed.swap(true, Ordering::AcqRel) {
            return;
        }
        let (server, mut live) = (self.clone(), live.clone());
        runtime.spawn(async move {
            let ping = redis::cmd("PING");
            let asking = live.connection.ask(&ping);
            let silent = !matches!(timeout(server.timeout, asking).await, Ok(Ok(_)));
            live.health.probed.store(false, Ordering::Release);
            if silent {
                server.give_up(&live);
                server.waiters.disconnected();
            }
        });
    }
}

/// Whether all that the server ever answered is on its disk. One that does not tell may not.
async fn keeps_every_write(connection: &mut Connection) -> bool {
    let wanted =
        [("appendonly", "yes"), ("appendfsync", "always"), ("no-appendfsync-on-rewrite", "no")];
    for (setting, wanted) in wanted {
        let said = connection.ask(redis::cmd("CONFIG").arg("GET").arg(setting)).await;
        let said = said.ok().and_then(|said| value_of(&said));
        if said.as_deref() != Some(wanted) {
            return false;
        }
    }
    true
}

/// Tells the server a script. What calls it goes right behind: nobody has it forget that
/// between the two.
pub(in crate::backend) fn loading(call: &Call) -> redis::Pipeline {
    let mut commands = redis::pipe();
    commands.cmd("SCRIPT").arg("LOAD").arg(call.script.text).ignore();
    commands
}

fn is_master(role: &Value) -> bool {
    match role {
        Value::Array(parts) => match parts.first() {
            Some(Value::BulkString(word)) => word == b"master",
            Some(Value::SimpleString(word)) => word == "master",
            _ => false,
        },
        _ => false,
    }
}

/// A request under way. Dropped without an answer, it makes its connection suspect.
struct Asked<'a> {
    server: &'a Arc<Server>,
    live: Live,
    answered: bool,
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
