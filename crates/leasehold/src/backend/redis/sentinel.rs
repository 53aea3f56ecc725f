//! Sentinel: who is the master just now?
//!
//! The driver's own Sentinel client ignores `+switch-master`, so this one listens to it, and
//! believes no server that does not call itself a master.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use parking_lot::Mutex;
use redis::Value;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::answer::text;
use super::connector::Connector;
use super::error::{Failure, Login};
use super::replicas::Replicas;
use super::script::Call;
use super::server::{Role, Server};
use super::url::Host;
use super::waiters::Waiters;
use crate::backend::{Finding, Severity};
use crate::error::{Error, ErrorKind, Result};

/// A pause before another sentinel is listened to.
const PAUSE: Duration = Duration::from_millis(500);

/// The way to the present master.
pub(super) struct Sentinel {
    shared: Arc<Shared>,
    listening: JoinHandle<()>,
}

struct Shared {
    connector: Connector,
    sentinels: Vec<Arc<Server>>,
    hosts: Vec<Host>,
    name: String,
    channel: String,
    waiters: Arc<Waiters>,
    present: Mutex<Option<Master>>,
    finding: tokio::sync::Mutex<()>,
}

#[derive(Debug, Clone)]
struct Master {
    server: Arc<Server>,
    replicas: Arc<Replicas>,
}

impl Sentinel {
    pub(super) fn new(
        connector: Connector,
        hosts: &[Host],
        name: &str,
        channel: String,
    ) -> Result<Self> {
        let sentinels = hosts.iter().map(|host| connector.sentinel(host)).collect::<Result<_>>()?;
        let waiters = connector.waiters.clone();
        let shared = Arc::new(Shared {
            connector,
            sentinels,
            hosts: hosts.to_vec(),
            name: name.to_owned(),
            channel,
            waiters,
            present: Mutex::default(),
            finding: tokio::sync::Mutex::default(),
        });
        let listening = tokio::spawn(listen(shared.clone()));
        Ok(Self { shared, listening })
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

    pub(super) async fn master(&self) -> Result<Arc<Server>> {
        Ok(self.shared.master().await?.server)
    }

    pub(super) async fn replicas(&self) -> Result<Arc<Replicas>> {
        Ok(self.shared.master().await?.replicas)
    }

    pub(super) fn channel(&self) -> &str {
        &self.shared.channel
    }

    /// Whether enough sentinels are there to elect another master.
    pub(super) async fn examine(&self) -> Result<Vec<Finding>> {
        let mut findings = Vec::new();
        for sentinel in &self.shared.sentinels {
            let mut check = redis::cmd("SENTINEL");
            check.arg("CKQUORUM").arg(&self.shared.name);
            findings.push(match sentinel.ask_in_time(&check).await {
                Ok(_) => {
                    let what = format!("the sentinel at {} sees a quorum", sentinel.host);
                    Finding::new(Severity::Fine, what, "")
                }
                Err(failure) => Finding::new(
                    Severity::Warning,
                    format!("the sentinel at {}: {}", sentinel.host, Error::from(failure)),
                    "without a quorum nobody takes over when the master is lost",
                ),
            });
        }
        Ok(findings)
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

impl Shared {
    async fn master(&self) -> Result<Master> {
        if let Some(master) = self.present.lock().clone() {
            return Ok(master);
        }
        let _alone = self.finding.lock().await;
        if let Some(master) = self.present.lock().clone() {
            return Ok(master);
        }
        let mut why = None;
        for sentinel in &self.sentinels {
            match self.master_according_to(sentinel).await {
                Ok(master) => {
                    *self.present.lock() = Some(master.clone());
                    return Ok(master);
                }
                Err(error) => why = Some(error),
            }
        }
        Err(why.unwrap_or_else(|| Error::invalid("no sentinel is named")))
    }

    async fn master_according_to(&self, sentinel: &Arc<Server>) -> Result<Master> {
        let host = self.address_according_to(sentinel).await?;
        let role = Role::Master { channel: self.channel.clone() };
        let server = self.connector.server(&host, role)?;
        server.live().await?;
        let replicas = Replicas::new(self.connector.server(&host, Role::Requests)?);
        Ok(Master { server, replicas })
    }

    async fn address_according_to(&self, sentinel: &Arc<Server>) -> Result<Host> {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("GET-MASTER-ADDR-BY-NAME").arg(&self.name);
        let unknown = || {
            let message =
                format!("the sentinel at {} knows no master {:?}", sentinel.host, self.name);
            Error::new(ErrorKind::Unusable, message)
        };
        let answer = match sentinel.ask_in_time(&ask).await {
            Err(failure) if failure.code() == Some("NOAUTH") => {
                let message = Login::Sentinel.missing(&sentinel.host.to_string());
                return Err(Error::new(ErrorKind::Unusable, message));
            }
            answer => answer?,
        };
        match answer {
            Value::Array(parts) if parts.len() == 2 => {
                let port = text(&parts[1])?.parse().map_err(|_| unknown())?;
                Ok(Host { name: text(&parts[0])?.to_owned(), port })
            }
            _ => Err(unknown()),
        }
    }

    /// This is not the master any more, or cannot be reached: the next request finds out.
    fn forget(&self, master: &Master) {
        let mut present = self.present.lock();
        if present.as_ref().is_some_and(|now| Arc::ptr_eq(&now.server, &master.server)) {
            *present = None;
            drop(present);
            master.server.disconnect();
            self.waiters.reconnected();
        }
    }

    fn is_at(&self, host: &Host) {
        let present = self.present.lock().clone();
        if let Some(master) = present.filter(|master| master.server.host != *host) {
            tracing::info!(from = %master.server.host, to = %host, "the master has changed");
            self.forget(&master);
        }
    }

    /// Listens to one sentinel for as long as it speaks.
    async fn follow(&self, host: &Host, sentinel: &Arc<Server>) -> redis::RedisResult<()> {
        let client = self.connector.sentinel_client(host)?;
        let mut messages = client.get_async_pubsub().await?;
        messages.subscribe("+switch-master").await?;
        // It may have changed before we listened.
        if let Ok(now) = self.address_according_to(sentinel).await {
            self.is_at(&now);
        }
        let mut messages = messages.into_on_message();
        while let Some(message) = messages.next().await {
            let message: String = message.get_payload()?;
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
    for turn in 0.. {
        let place = turn % shared.sentinels.len().max(1);
        let (Some(host), Some(sentinel)) = (shared.hosts.get(place), shared.sentinels.get(place))
        else {
            return;
        };
        let following = shared.follow(host, sentinel).await;
        tracing::debug!(sentinel = %host, ?following, "the sentinel is silent");
        // Not at once: all of them may be away.
        let _ = timeout(PAUSE, std::future::pending::<()>()).await;
    }
}

impl fmt::Debug for Sentinel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sentinel").field("name", &self.shared.name).finish_non_exhaustive()
    }
}
