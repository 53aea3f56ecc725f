//! Sentinel: who is the master just now?
//!
//! It listens to `+switch-master`, and believes no server that does not call itself a master.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::replicas::Replicas;
use crate::backend::Finding;
use crate::backend::kit::reconnect::{Connected, Reconnect};
use crate::backend::redis::connection::{ConnectionError, Connector, Heard, Peer, Request, Value};
use crate::backend::redis::error::Failure;
use crate::backend::redis::script::{Call, parts, text};
use crate::backend::redis::session::{Role, Server};
use crate::backend::redis::url::Host;
use crate::error::{Error, ErrorKind, Result};

/// A pause before another sentinel is listened to.
const PAUSE: Duration = Duration::from_millis(500);

/// The way to the present master.
pub(crate) struct Sentinel {
    shared: Arc<Shared>,
    /// Ends with it.
    _listening: JoinSet<()>,
}

struct Shared {
    connector: Arc<Connector>,
    sentinels: Vec<Arc<Server>>,
    name: String,
    channel: String,
    present: Reconnect<Arc<Master>>,
}

pub(super) struct Master {
    pub(super) server: Arc<Server>,
    pub(super) replicas: Arc<Replicas>,
    /// It is not the master any more, or cannot be reached.
    forgotten: AtomicBool,
}

impl Connected for Arc<Master> {
    fn is_open(&self) -> bool {
        !self.forgotten.load(Ordering::Acquire)
    }
}

impl Sentinel {
    pub(super) fn new(
        connector: Arc<Connector>,
        hosts: &[Host],
        name: &str,
        channel: String,
    ) -> Self {
        let sentinel = |host| Server::new(&connector, host, Role::Sentinel);
        let sentinels = hosts.iter().map(sentinel).collect();
        let present = Reconnect::new(connector.clock.clone(), Duration::ZERO);
        let name = name.to_owned();
        let shared = Arc::new(Shared { connector, sentinels, name, channel, present });
        let mut listening = JoinSet::new();
        listening.spawn(listen(shared.clone()));
        Self { shared, _listening: listening }
    }

    /// Calls a script on the master. What a former master refused goes to its successor.
    pub(super) async fn call(&self, call: &Call) -> Result<Value> {
        let master = self.shared.master().await?;
        let failure = match master.server.call(call).await {
            Ok(answer) => return Ok(answer),
            Err(failure) => failure,
        };
        let replica = matches!(failure.code(), Some("READONLY" | "MASTERDOWN"));
        if matches!(failure, Failure::Refused(_)) && !replica {
            // A master that refuses, as one whose memory is full does, is still the master.
            return Err(failure.into());
        }
        self.shared.forget(&master);
        if matches!(failure, Failure::Unanswered(_)) {
            return Err(failure.into());
        }
        match self.shared.master().await {
            Ok(next) if next.server.host != master.server.host => {
                Ok(next.server.call(call).await?)
            }
            _ => Err(failure.into()),
        }
    }

    pub(super) async fn master(&self) -> Result<Arc<Master>> {
        self.shared.master().await
    }

    pub(super) fn channel(&self) -> &str {
        &self.shared.channel
    }

    /// Whether enough sentinels are there to elect another master.
    pub(super) async fn examine(&self) -> Vec<Finding> {
        let mut findings = Vec::new();
        for sentinel in &self.shared.sentinels {
            let check = ["SENTINEL", "CKQUORUM", &self.shared.name];
            let host = &sentinel.host;
            findings.push(match sentinel.ask_in_time(&check).await {
                Ok(_) => Finding::fine(format!("the sentinel at {host} sees a quorum")),
                Err(failure) => Finding::warning(
                    format!("the sentinel at {host}: {}", Error::from(failure)),
                    "without a quorum nobody takes over when the master is lost",
                ),
            });
        }
        findings
    }
}

impl Shared {
    async fn master(&self) -> Result<Arc<Master>> {
        self.present.get(|| self.find()).await
    }

    async fn find(&self) -> Result<Arc<Master>> {
        let mut why = None;
        for sentinel in &self.sentinels {
            match self.master_according_to(sentinel).await {
                Ok(master) => return Ok(master),
                Err(error) => why = Some(error),
            }
        }
        Err(why.unwrap_or_else(|| Error::invalid("no sentinel is named")))
    }

    async fn master_according_to(&self, sentinel: &Arc<Server>) -> Result<Arc<Master>> {
        let host = self.address_according_to(sentinel).await?;
        let role = Role::Master { channel: self.channel.clone() };
        let server = Server::new(&self.connector, &host, role);
        server.live().await?;
        let replicas = Replicas::new(Server::new(&self.connector, &host, Role::Requests));
        Ok(Arc::new(Master { server, replicas, forgotten: AtomicBool::new(false) }))
    }

    async fn address_according_to(&self, sentinel: &Arc<Server>) -> Result<Host> {
        let ask = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", &self.name];
        let unknown = || {
            let message =
                format!("the sentinel at {} knows no master {:?}", sentinel.host, self.name);
            Error::new(ErrorKind::Unusable, message).not_applied()
        };
        let answer = sentinel.ask_in_time(&ask).await?;
        let [name, port] = parts(&answer).map_err(|_| unknown())?;
        let port = text(port)?.parse().map_err(|_| unknown())?;
        Ok(Host { name: text(name)?.to_owned(), port })
    }

    /// The next request finds out who is the master.
    fn forget(&self, master: &Master) {
        if !master.forgotten.swap(true, Ordering::AcqRel) {
            self.present.drop_closed();
            master.server.disconnect();
            self.connector.waiters.reconnected();
        }
    }

    fn is_at(&self, host: &Host) {
        if let Some(master) = self.present.current().filter(|now| now.server.host != *host) {
            tracing::info!(from = %master.server.host, to = %host, "the master has changed");
            self.forget(&master);
        }
    }

    /// Listens to one sentinel for as long as it speaks.
    async fn follow(&self, sentinel: &Arc<Server>) -> Result<(), ConnectionError> {
        let (tell, mut told) = mpsc::unbounded_channel();
        let on_heard = Box::new(move |heard: Heard<'_>| {
            // Nobody may be there to be told any more.
            let _ = tell.send(match heard {
                Heard::Message(message) => Some(String::from_utf8_lossy(message).into_owned()),
                Heard::Ended => None,
            });
        });
        let subscribing = async {
            let connecting = self.connector.connect(&sentinel.host, Peer::Sentinel, on_heard);
            let connection = connecting.await?;
            connection.ask(&Request::of(&["SUBSCRIBE", "+switch-master"])).await?;
            Ok::<_, ConnectionError>(connection)
        };
        let subscribed = timeout(self.connector.settings.timeout, subscribing).await;
        let _connection = subscribed.map_err(io::Error::from)??;
        // It may have changed before we listened.
        if let Ok(now) = self.address_according_to(sentinel).await {
            self.is_at(&now);
        }
        while let Some(Some(message)) = told.recv().await {
            // <name> <old ip> <old port> <new ip> <new port>
            let words: Vec<_> = message.split(' ').collect();
            if let [name, _, _, new, port] = words[..]
                && name == self.name
                && let Ok(port) = port.parse()
            {
                self.is_at(&Host { name: new.to_owned(), port });
            }
        }
        Ok(())
    }
}

async fn listen(shared: Arc<Shared>) {
    for sentinel in shared.sentinels.iter().cycle() {
        let following = shared.follow(sentinel).await;
        tracing::debug!(sentinel = %sentinel.host, ?following, "the sentinel is silent");
        // Not at once: all of them may be away.
        tokio::time::sleep(PAUSE).await;
    }
}
