//! Cluster: which node has a slot, and following it when it moves.
//!
//! A request goes to another node only when the first one certainly did not do it.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::time::timeout;

use super::replicas::Replicas;
use super::slots::{Map, Node, Slots, read_map};
use super::subscriptions::Subscriptions;
use crate::backend::Finding;
use crate::backend::redis::connection::{Connector, Request, Value};
use crate::backend::redis::error::Failure;
use crate::backend::redis::info::Info;
use crate::backend::redis::keys::tag;
use crate::backend::redis::script::Call;
use crate::backend::redis::session::{Role, Server};
use crate::backend::redis::url::Host;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// A pause while a slot moves or a fail-over is under way.
const PAUSE: Duration = Duration::from_millis(50);
/// The shortest time between two refreshes of the map.
const REFRESH: Duration = Duration::from_millis(100);
/// How long to wait for a better map than the one at hand.
const GRACE: Duration = Duration::from_millis(200);

/// The way to the nodes.
pub(crate) struct Cluster {
    connector: Arc<Connector>,
    seeds: Vec<Host>,
    channel: String,
    /// Whether messages can stay within a shard (Redis 7).
    shards_speak: bool,
    slots: Mutex<Slots>,
    refreshed: tokio::sync::Mutex<Option<Moment>>,
}

impl Cluster {
    pub(super) async fn open(
        connector: Arc<Connector>,
        seeds: &[Host],
        channel: String,
    ) -> Result<Self> {
        let mut cluster = Self {
            connector,
            seeds: seeds.to_vec(),
            channel,
            shards_speak: true,
            slots: Mutex::default(),
            refreshed: tokio::sync::Mutex::default(),
        };
        cluster.refresh().await?;
        let masters = cluster.slots.lock().masters();
        if let Some(node) = masters.first() {
            cluster.shards_speak = Info::ask(&node.server).await?.version() >= (7, 0, 0);
        }
        if !cluster.shards_speak {
            // Messages go to all nodes, so that any connection hears them.
            *cluster.slots.lock() = Slots::default();
            *cluster.refreshed.lock().await = None;
            cluster.refresh().await?;
        }
        Ok(cluster)
    }

    /// Calls a script at the node that has its slot, wherever that goes meanwhile.
    pub(super) async fn call(&self, call: &Call) -> Result<Value> {
        let give_up_at = self.connector.clock.now() + self.connector.settings.timeout;
        let mut node = self.node_of(call.slot).await?;
        let mut asking = false;
        loop {
            let answer = match asking {
                true => node.server.call_asking(call).await,
                false => node.server.call(call).await,
            };
            asking = false;
            let failure = match answer {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            if self.connector.clock.now() >= give_up_at {
                return Err(failure.into());
            }
            match failure.code() {
                Some("MOVED") => {
                    node = self.redirected(&failure, &node)?;
                    self.slots.lock().moved(call.slot, &node);
                    self.forget_refresh();
                }
                Some("ASK") => {
                    node = self.redirected(&failure, &node)?;
                    asking = true;
                }
                Some("TRYAGAIN" | "CLUSTERDOWN" | "MASTERDOWN" | "READONLY" | "LOADING") => {
                    tokio::time::sleep(PAUSE).await;
                    self.refresh().await?;
                    node = self.node_of(call.slot).await?;
                }
                None if matches!(failure, Failure::NotSent(_)) => {
                    self.refresh().await?;
                    let next = self.node_of(call.slot).await?;
                    if next.server.host == node.server.host {
                        return Err(failure.into());
                    }
                    node = next;
                }
                _ => return Err(failure.into()),
            }
        }
    }

    /// The node that a `MOVED` or `ASK` names.
    fn redirected(&self, failure: &Failure, from: &Arc<Node>) -> Result<Arc<Node>> {
        let Failure::Refused(error) = failure else { return Err(failure.clone().into()) };
        // The slot, and where it is.
        let address = error.detail().split(' ').nth(1).and_then(|to| to.rsplit_once(':'));
        let (name, port) = address.ok_or_else(|| Error::from(failure.clone()))?;
        let port = port.parse().map_err(|_| Error::from(failure.clone()))?;
        // An empty name is the one we asked.
        let name = if name.is_empty() { &from.server.host.name } else { name };
        Ok(self.node(&Host { name: name.to_owned(), port }))
    }

    pub(super) async fn node_of(&self, slot: u16) -> Result<Arc<Node>> {
        if let Some(node) = self.slots.lock().node_of(slot) {
            return Ok(node);
        }
        self.refresh().await?;
        self.slots.lock().node_of(slot).ok_or_else(nobody)
    }

    fn node(&self, host: &Host) -> Arc<Node> {
        if let Some(node) = self.slots.lock().nodes.get(host) {
            return node.clone();
        }
        let role = match self.shards_speak {
            true => Role::Requests,
            false => Role::Everything { channel: self.channel.clone() },
        };
        let server = |role| Server::new(&self.connector, host, role);
        let node = Node {
            server: server(role),
            subscriptions: Subscriptions::new(server(Role::Requests)),
            replicas: Replicas::new(server(Role::Requests)),
        };
        self.slots.lock().remember(Arc::new(node))
    }

    fn forget_refresh(&self) {
        // The next question is asked even if the last one was just now.
        if let Ok(mut refreshed) = self.refreshed.try_lock() {
            *refreshed = None;
        }
    }

    /// Asks the known nodes and the seeds which node has which slots.
    async fn refresh(&self) -> Result<()> {
        let mut refreshed = self.refreshed.lock().await;
        let now = self.connector.clock.now();
        if refreshed.is_some_and(|at| at.until(now) < REFRESH) {
            return Ok(());
        }
        let mut hosts: HashSet<_> = self.slots.lock().nodes.keys().cloned().collect();
        hosts.extend(self.seeds.iter().cloned());
        let map = self.best_map(hosts).await?;
        if map.ranges.is_empty() {
            // Only nodes that left the cluster answered: what was known before is better.
            return self.slots.lock().epoch.map(drop).ok_or_else(nobody);
        }
        let located = |(range, host)| (range, self.node(&host));
        let nodes = map.ranges.into_iter().map(located).collect();
        *refreshed = Some(self.connector.clock.now());
        if self.slots.lock().replace(nodes, map.epoch) {
            self.connector.waiters.reconnected();
        }
        Ok(())
    }

    /// Asks all of these at once, and does not wait for those that are away: a whole map of a node
    /// that serves requests, no older than what is known, is taken at once; otherwise the best that
    /// comes. A cluster that was set up anew has an older one.
    async fn best_map(&self, hosts: HashSet<Host>) -> Result<Map> {
        let known = self.slots.lock().epoch;
        let limit = self.connector.settings.timeout;
        let mut asking = FuturesUnordered::new();
        for host in hosts {
            let server = self.node(&host).server.clone();
            asking.push(async move {
                let questions = ["SLOTS", "INFO"].map(|what| Request::of(&["CLUSTER", what]));
                let answered = timeout(limit, server.ask_all(&questions)).await;
                let answers = answered.unwrap_or_else(|_| Err(Failure::silent()))?;
                read_map(&answers, &server.host)
            });
        }
        let mut best: Option<Map> = None;
        let mut failed = None;
        let mut patience = limit;
        while let Ok(Some(answer)) = timeout(patience, asking.next()).await {
            let map = match answer {
                Ok(map) => map,
                Err(error) => {
                    failed = Some(error);
                    continue;
                }
            };
            let is_recent = known <= Some(map.epoch);
            if map.is_ok && map.is_whole() && is_recent && known.is_some() {
                return Ok(map);
            }
            if !map.ranges.is_empty() {
                // A node that is cut off serves nothing: others are worth a longer wait.
                let longest = if map.is_ok { GRACE } else { GRACE.max(limit / 4) };
                patience = patience.min(longest);
            }
            if best.as_ref().is_none_or(|best| map.is_better_than(best)) {
                best = Some(map);
            }
        }
        best.ok_or_else(|| failed.unwrap_or_else(nobody))
    }

    /// As scripts want it: `S:` stays within the shard of the slot.
    pub(super) fn channel(&self, slot: u16) -> String {
        match self.shards_speak {
            true => format!("S:{}", self.shard_channel(slot)),
            false => format!("P:{}", self.channel),
        }
    }

    fn shard_channel(&self, slot: u16) -> String {
        format!("{}{}", tag(slot), self.channel)
    }

    pub(super) fn listens(&self, slot: u16) -> bool {
        let node = self.slots.lock().node_of(slot);
        !self.shards_speak || node.is_some_and(|node| node.subscriptions.hear(slot))
    }

    pub(super) async fn listen(&self, slot: u16) -> Result<()> {
        if !self.shards_speak {
            return Ok(());
        }
        let node = self.node_of(slot).await?;
        match node.subscriptions.listen(slot, &self.shard_channel(slot)).await {
            Err(Failure::Refused(_)) => {
                // It moved: the call that follows finds out where to, the next one listens there.
                self.forget_refresh();
                self.refresh().await
            }
            listening => Ok(listening?),
        }
    }

    pub(super) async fn masters(&self) -> Result<Vec<Arc<Server>>> {
        self.refresh().await?;
        Ok(self.slots.lock().masters().iter().map(|node| node.server.clone()).collect())
    }

    pub(super) async fn replicas(&self, slot: u16) -> Result<Arc<Replicas>> {
        Ok(self.node_of(slot).await?.replicas.clone())
    }

    pub(super) fn examine(&self) -> Finding {
        match self.slots.lock().missing() {
            0 => Finding::fine("every slot of the cluster has a master"),
            count => Finding::danger(
                format!("{count} slots of the cluster have no master"),
                "locks in them cannot be had: redis-cli --cluster check says more",
            ),
        }
    }
}

fn nobody() -> Error {
    let message = "no node of the cluster has this lock's slot; see redis-cli --cluster check";
    Error::new(ErrorKind::Unavailable, message).not_applied()
}
