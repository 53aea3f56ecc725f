//! What about this ZooKeeper's set-up is unsafe, for `leasehold doctor`.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::Error as Zk;

use super::ZookeeperStore;
use super::error::of_request;
use super::sessions::connect;
use super::url::Access;
use super::words::{self, Answer};
use crate::backend::kit::url::Host;
use crate::backend::{Finding, Severity};
use crate::error::Result;
use crate::terms::DEFAULT_TTL;

/// Longer than servers allow: what they grant instead is the longest they do.
const VERY_LONG: Duration = Duration::from_millis(i32::MAX as u64);
/// Shorter than servers allow, but long enough to connect in.
const VERY_SHORT: Duration = Duration::from_millis(300);
/// How many locks are looked at for nodes of another layout.
const MOST_LOCKS: usize = 1_000;

impl ZookeeperStore {
    pub(super) async fn examine_set_up(&self) -> Result<Vec<Finding>> {
        self.sessions.reader().await?;
        let mut findings = Vec::new();
        let mut conf = None;
        if self.target.tls.is_some() {
            let what = "four-letter words are not asked for over TLS";
            let advice = "what the servers say of themselves is not examined";
            findings.push(Finding::new(Severity::Fine, what, advice));
        } else {
            conf = self.examine_servers(&mut findings).await;
        }
        self.examine_ensemble(&mut findings).await?;
        self.examine_sessions(&mut findings, conf.as_ref()).await;
        self.examine_access(&mut findings);
        self.examine_layout(&mut findings).await?;
        Ok(findings)
    }

    /// Each server of the URL, by its four-letter words; the configuration of one of them.
    async fn examine_servers(
        &self,
        findings: &mut Vec<Finding>,
    ) -> Option<HashMap<String, String>> {
        let asking = self.target.hosts.iter().map(async |Host { name: host, port }| {
            let srvr = words::ask(host, *port, "srvr").await;
            (format!("{host}:{port}"), srvr, words::ask(host, *port, "conf").await)
        });
        let mut found = None;
        for (server, srvr, conf) in join_all(asking).await {
            findings.push(about_server(&server, srvr));
            if let Answer::Said(conf) = conf {
                found = found.or(Some(conf));
            }
        }
        found
    }

    /// How many servers vote.
    async fn examine_ensemble(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let session = self.sessions.reader().await?;
        let config = match session.client.get_config().await {
            Ok((config, _)) => String::from_utf8_lossy(&config).into_owned(),
            Err(Zk::NoAuth | Zk::NoNode) => {
                let what = "the ensemble's configuration may not be read";
                let advice = "whether enough servers vote is not examined";
                findings.push(Finding::new(Severity::Fine, what, advice));
                return Ok(());
            }
            Err(error) => return Err(of_request(error)),
        };
        let servers = config.lines().filter(|line| line.starts_with("server."));
        let (observers, voters): (Vec<_>, Vec<_>) =
            servers.partition(|line| line.contains(":observer"));
        findings.push(match voters.len() {
            0 => Finding::new(
                Severity::Warning,
                "one server on its own",
                "while it is away no lock can be had or renewed; an ensemble of three survives \
                 the loss of one",
            ),
            voters if voters % 2 == 0 => Finding::new(
                Severity::Warning,
                format!("{voters} servers vote"),
                "an even number survives no more losses than one less: use an odd one",
            ),
            voters => Finding::new(
                Severity::Fine,
                format!("{voters} servers vote"),
                format!("{} of them may be away", (voters - 1) / 2),
            ),
        });
        if !observers.is_empty() {
            let what = format!("{} observers", observers.len());
            let advice = "they do not vote; leases are proved by writes, so a lock is safe there, \
                          too, but takes longer";
            findings.push(Finding::new(Severity::Fine, what, advice));
        }
        Ok(())
    }

    /// Which TTLs the servers allow: by what they say, and by what they grant.
    async fn examine_sessions(
        &self,
        findings: &mut Vec<Finding>,
        conf: Option<&HashMap<String, String>>,
    ) {
        let said = |key: &str| {
            let millis = conf?.get(key)?.parse().ok()?;
            Some(Duration::from_millis(millis))
        };
        let (short, long) =
            tokio::join!(connect(&self.target, VERY_SHORT), connect(&self.target, VERY_LONG));
        let granted = |client: Result<zookeeper_client::Client>| {
            client.ok().map(|client| client.session_timeout())
        };
        let shortest = said("minSessionTimeout").or_else(|| granted(short));
        let longest = said("maxSessionTimeout").or_else(|| granted(long));
        if let (Some(shortest), Some(longest)) = (shortest, longest) {
            let what = format!("TTLs from {shortest:?} to {longest:?} are possible");
            let advice = "others are refused, since the server would change them: \
                          minSessionTimeout and maxSessionTimeout set the bounds";
            findings.push(Finding::new(Severity::Fine, what, advice));
            for (what, ttl) in
                [("the default TTL", DEFAULT_TTL), ("session= in the URL", self.target.session)]
            {
                if ttl < shortest || ttl > longest {
                    let what = format!("{what}, {ttl:?}, is not possible");
                    let advice = "every lock with it is refused: choose another TTL, or set \
                                  minSessionTimeout and maxSessionTimeout";
                    findings.push(Finding::new(Severity::Warning, what, advice));
                }
            }
        }
        let Some(tick) = said("tickTime") else { return };
        if tick > self.sessions.tick(DEFAULT_TTL).await {
            let what = format!("the servers' tick is {tick:?}, longer than assumed");
            let advice = format!("say so in the URL: tick={}ms", tick.as_millis());
            findings.push(Finding::new(Severity::Unsafe, what, advice));
        } else {
            let what = format!("the servers' tick is {tick:?}");
            findings.push(Finding::new(Severity::Fine, what, "as assumed, or shorter"));
        }
    }

    fn examine_access(&self, findings: &mut Vec<Finding>) {
        findings.push(match self.target.access {
            Access::Anyone => Finding::new(
                Severity::Warning,
                "nodes are made for everybody",
                "whoever reaches the servers can delete a lock's node; with a user in the URL \
                 (zk://user:password@…) only those who know it can",
            ),
            Access::Creator | Access::CreatorAndReaders => Finding::new(
                Severity::Fine,
                "nodes are made for this user",
                "others cannot delete them; nodes that existed before keep their own ACL",
            ),
        });
    }

    /// Nodes of the other layout among ours.
    async fn examine_layout(&self, findings: &mut Vec<Finding>) -> Result<()> {
        let session = self.sessions.reader().await?;
        let children = match session.client.list_children(self.paths.root()).await {
            Ok(children) => children,
            // No lock has been used yet.
            Err(Zk::NoNode) => Vec::new(),
            Err(error) => return Err(of_request(error)),
        };
        let (layout, other) = (self.target.layout, self.target.layout.other());
        let locks = children.iter().filter_map(|child| self.paths.name(child)).take(MOST_LOCKS);
        let mut mixed = Vec::new();
        for name in locks {
            let children = session.client.list_children(&self.paths.lock(&name)).await;
            let foreign = |child: &String| other.sequence(child).is_some();
            if children.is_ok_and(|children| children.iter().any(foreign)) {
                mixed.push(name.to_string());
            }
        }
        findings.push(match mixed.first() {
            None => Finding::new(
                Severity::Fine,
                format!("names are {}'s", layout.as_str()),
                "no nodes of another layout are on the path of a lock",
            ),
            Some(first) => Finding::new(
                Severity::Unsafe,
                format!(
                    "{} of the locks have nodes of {} ({first:?}, …)",
                    mixed.len(),
                    other.as_str()
                ),
                format!(
                    "clients of both kinds do not exclude each other: say layout={} everywhere, or \
                     keep them on paths of their own",
                    other.as_str()
                ),
            ),
        });
        Ok(())
    }
}

fn about_server(server: &str, srvr: Answer) -> Finding {
    match srvr {
        Answer::Said(said) => {
            let of = |key: &str| said.get(key).map_or("unknown", String::as_str);
            let version = of("Zookeeper version").split(['-', ',']).next().unwrap_or_default();
            let what = format!("{server} is {} (version {version})", of("Mode"));
            Finding::new(Severity::Fine, what, "it serves")
        }
        Answer::NotAllowed => Finding::new(
            Severity::Fine,
            format!("{server} does not say how it is"),
            "allow it with 4lw.commands.whitelist=srvr,conf in its configuration",
        ),
        Answer::NotServing => Finding::new(
            Severity::Warning,
            format!("{server} serves nobody"),
            "it has no leader: see its log, and whether it reaches the others",
        ),
        Answer::Silent(why) => Finding::new(
            Severity::Warning,
            format!("{server} does not answer: {why}"),
            "while it is away the others have less to spare",
        ),
    }
}
