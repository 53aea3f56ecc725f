//! What about this ZooKeeper's set-up is unsafe, for `leasehold doctor`.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use zookeeper_client::Error as Zk;

use super::ZookeeperStore;
use super::error::{found, of_request};
use super::four_letter::{self, Answer};
use super::session::{LONGEST, Session, connect};
use super::url::Access;
use crate::backend::kit::url::Host;
use crate::backend::{Finding, Severity};
use crate::error::Result;
use crate::terms::DEFAULT_TTL;

/// Shorter than servers allow, but long enough to connect in.
const VERY_SHORT: Duration = Duration::from_millis(300);
/// How many locks are looked at for nodes of another layout.
const MOST_LOCKS: usize = 1_000;

pub(super) async fn examine(store: Arc<ZookeeperStore>) -> Result<Vec<Finding>> {
    let session = store.sessions.reader().await?;
    let (mut findings, conf) = servers(&store).await;
    findings.extend(ensemble(&session).await?);
    findings.extend(time_outs(&store, &conf).await);
    findings.push(access(store.target.access));
    findings.push(layout(&store, &session).await?);
    Ok(findings)
}

fn fine(what: impl Into<String>, advice: impl Into<String>) -> Finding {
    Finding::new(Severity::Fine, what, advice)
}

/// Each server of the URL, by its four-letter words; the configuration of one of them.
async fn servers(store: &ZookeeperStore) -> (Vec<Finding>, HashMap<String, String>) {
    let mut found = HashMap::new();
    if store.target.tls.is_some() {
        let what = "four-letter words are not asked for over TLS";
        return (vec![fine(what, "what the servers say of themselves is not examined")], found);
    }
    let asking = store.target.hosts.iter().map(async |Host { name, port }| {
        let srvr = four_letter::ask(name, *port, "srvr").await;
        (format!("{name}:{port}"), srvr, four_letter::ask(name, *port, "conf").await)
    });
    let mut findings = Vec::new();
    for (server, srvr, conf) in join_all(asking).await {
        findings.push(about_server(&server, srvr));
        match conf {
            Answer::Said(conf) if found.is_empty() => found = conf,
            _ => {}
        }
    }
    (findings, found)
}

fn about_server(server: &str, srvr: Answer) -> Finding {
    match srvr {
        Answer::Said(said) => {
            let of = |key: &str| said.get(key).map_or("unknown", String::as_str);
            let version = of("Zookeeper version").split(['-', ',']).next().unwrap_or_default();
            fine(format!("{server} is {} (version {version})", of("Mode")), "it serves")
        }
        Answer::NotAllowed => fine(
            format!("{server} does not say how it is"),
            "allow it with 4lw.commands.whitelist=srvr,conf in its configuration",
        ),
        Answer::NotServing => Finding::warning(
            format!("{server} serves nobody"),
            "it has no leader: see its log, and whether it reaches the others",
        ),
        Answer::Silent(why) => Finding::warning(
            format!("{server} does not answer: {why}"),
            "while it is away the others have less to spare",
        ),
    }
}

/// How many servers vote.
async fn ensemble(session: &Session) -> Result<Vec<Finding>> {
    let config = match session.client.get_config().await {
        Ok((config, _)) => String::from_utf8_lossy(&config).into_owned(),
        Err(Zk::NoAuth | Zk::NoNode) => {
            let what = "the ensemble's configuration may not be read";
            return Ok(vec![fine(what, "whether enough servers vote is not examined")]);
        }
        Err(error) => return Err(of_request(error)),
    };
    let servers = config.lines().filter(|line| line.starts_with("server."));
    let (observers, voters): (Vec<_>, Vec<_>) =
        servers.partition(|line| line.contains(":observer"));
    let voting = format!("{} servers vote", voters.len());
    let mut findings = vec![match voters.len() {
        0 => Finding::warning(
            "one server on its own",
            "while it is away no lock can be had or renewed; an ensemble of three survives the \
             loss of one",
        ),
        voters if voters % 2 == 0 => {
            let advice = "an even number survives no more losses than one less: use an odd one";
            Finding::warning(voting, advice)
        }
        voters => fine(voting, format!("{} of them may be away", (voters - 1) / 2)),
    }];
    if !observers.is_empty() {
        let advice = "they do not vote; leases are proved by writes, so a lock is safe there, \
                      too, but takes longer";
        findings.push(fine(format!("{} observers", observers.len()), advice));
    }
    Ok(findings)
}

/// Which TTLs the servers allow: by what they say, and by what they grant.
async fn time_outs(store: &ZookeeperStore, conf: &HashMap<String, String>) -> Vec<Finding> {
    let mut findings = Vec::new();
    let said = |key: &str| Some(Duration::from_millis(conf.get(key)?.parse().ok()?));
    let granted = async |asked| Some(connect(&store.target, asked).await.ok()?.session_timeout());
    // Longer than servers allow: what they grant instead is the longest they do.
    let (short, long) = tokio::join!(granted(VERY_SHORT), granted(LONGEST));
    let shortest = said("minSessionTimeout").or(short);
    let longest = said("maxSessionTimeout").or(long);
    if let (Some(shortest), Some(longest)) = (shortest, longest) {
        findings.push(fine(
            format!("TTLs from {shortest:?} to {longest:?} are possible"),
            "others are refused, since the server would change them: minSessionTimeout and \
             maxSessionTimeout set the bounds",
        ));
        for (what, ttl) in
            [("the default TTL", DEFAULT_TTL), ("session= in the URL", store.target.session)]
        {
            if ttl < shortest || ttl > longest {
                findings.push(Finding::warning(
                    format!("{what}, {ttl:?}, is not possible"),
                    "every lock with it is refused: choose another TTL, or set minSessionTimeout \
                     and maxSessionTimeout",
                ));
            }
        }
    }
    let Some(tick) = said("tickTime") else { return findings };
    findings.push(if tick > store.sessions.tick(DEFAULT_TTL).await {
        let advice = format!("say so in the URL: tick={}ms", tick.as_millis());
        Finding::danger(format!("the servers' tick is {tick:?}, longer than assumed"), advice)
    } else {
        fine(format!("the servers' tick is {tick:?}"), "as assumed, or shorter")
    });
    findings
}

fn access(access: Access) -> Finding {
    match access {
        Access::Anyone => Finding::warning(
            "nodes are made for everybody",
            "whoever reaches the servers can delete a lock's node; with a user in the URL \
             (zk://user:password@…) only those who know it can",
        ),
        Access::Creator | Access::CreatorAndReaders => fine(
            "nodes are made for this user",
            "others cannot delete them; nodes that existed before keep their own ACL",
        ),
    }
}

/// Nodes of the other layout among ours.
async fn layout(store: &ZookeeperStore, session: &Session) -> Result<Finding> {
    let (layout, other) = (store.target.layout, store.target.layout.other());
    // Without a root no lock has been used yet.
    let children = found(session.client.list_children(store.paths.root()).await)?;
    let children = children.unwrap_or_default();
    let locks = children.iter().filter_map(|child| store.paths.name(child)).take(MOST_LOCKS);
    let mut mixed = Vec::new();
    for name in locks {
        let children = session.client.list_children(&store.paths.lock(&name)).await;
        if children.is_ok_and(|children| children.iter().any(|child| layout.is_foreign(child))) {
            mixed.push(name.to_string());
        }
    }
    let Some(first) = mixed.first() else {
        let advice = "no nodes of another layout are on the path of a lock";
        return Ok(fine(format!("names are {}'s", layout.as_str()), advice));
    };
    let (count, other) = (mixed.len(), other.as_str());
    Ok(Finding::danger(
        format!("{count} of the locks have nodes of {other} ({first:?}, …)"),
        format!(
            "clients of both kinds do not exclude each other: say layout={other} everywhere, or \
             keep them on paths of their own"
        ),
    ))
}
