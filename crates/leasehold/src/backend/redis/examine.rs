//! What about a server's set-up is unsafe: for `doctor`, and for refusing it at once.

use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use super::error::unexpected;
use super::info::{Info, setting};
use super::script::{parts, text};
use super::session::Server;
use super::topology::Topology;
use crate::backend::Finding;
use crate::error::{Error, ErrorKind, Result};

/// A difference between clocks that deserves a word.
const NOTABLE_OFFSET: Duration = Duration::from_secs(1);

/// The first that can say where somebody stands in a list.
const OLDEST: (u32, u32, u32) = (6, 0, 6);

/// Refuses a server on which locks cannot work, or not safely.
pub(crate) fn refuse_unsafe(server: &Server, info: &Info, allow_unsafe: bool) -> Result<()> {
    let refuse = |message| Err(Error::new(ErrorKind::Refused, message));
    if info.version() < OLDEST {
        return refuse(format!("{} at {} is older than Redis 6.0.6", info.product(), server.host));
    }
    if let (Some(policy), true, false) = (info.eviction(), info.is_limited(), allow_unsafe) {
        return refuse(format!(
            "{} throws keys away when its memory is full ({policy}), and a lock with them: set \
             maxmemory-policy noeviction, or add allow-unsafe to the URL",
            server.host
        ));
    }
    Ok(())
}

/// Refuses a server that is not what the URL says.
pub(super) fn refuse_another(topology: &Topology, server: &Server, info: &Info) -> Result<()> {
    let host = &server.host;
    let message = match topology {
        Topology::Cluster(_) if !info.is_cluster() => {
            format!("{host} belongs to no cluster: write redis:// in place of redis+cluster://")
        }
        Topology::Single { .. } | Topology::Sentinel(_) if info.is_cluster() => {
            format!("{host} belongs to a cluster: write redis+cluster:// in place of redis://")
        }
        Topology::Single { .. } if !info.is_master() => {
            format!("{host} is a replica: connect to its master, or through redis+sentinel://")
        }
        _ => return Ok(()),
    };
    Err(Error::new(ErrorKind::Refused, message))
}

pub(super) async fn examine(store: Arc<RedisStore>) -> Result<Vec<Finding>> {
    let mut findings = store.topology.examine().await;
    for server in store.topology.masters().await? {
        let info = Info::ask(&server).await?;
        findings.extend(of_server(&server, &info).await);
        findings.extend(replication(&store, &server, &info).await);
        findings.push(clock_offset(&store, &server).await?);
    }
    Ok(findings)
}

async fn replication(store: &RedisStore, server: &Arc<Server>, info: &Info) -> Vec<Finding> {
    let replicas = info.number("connected_slaves");
    let wanted = store.settings.wait_replicas;
    let mut findings = Vec::new();
    if u64::from(wanted) > replicas {
        findings.push(Finding::danger(
            format!("wait-replicas is {wanted}, but {replicas} are there"),
            "no lock can be had until there are as many: see to the replicas",
        ));
    }
    if replicas == 0 {
        let what = "no replica: nothing takes over when this server is lost";
        findings.push(Finding::fine(what));
        return findings;
    }
    let least = setting(server, "min-replicas-to-write").await;
    findings.push(match least.and_then(|least| least.parse::<u64>().ok()) {
        Some(0) => Finding::warning(
            format!("{replicas} replicas, and min-replicas-to-write is 0"),
            "a master that is cut off goes on granting locks that a fail-over forgets: set \
             min-replicas-to-write 1 and min-replicas-max-lag 10",
        ),
        Some(least) => Finding::fine(format!("{replicas} replicas, of which {least} must be near")),
        None => Finding::fine(format!("{replicas} replicas; min-replicas-to-write cannot be read")),
    });
    findings
}

async fn clock_offset(store: &RedisStore, server: &Arc<Server>) -> Result<Finding> {
    let before = store.clock.wall_micros();
    let answer = server.ask_in_time(&["TIME"]).await?;
    let after = store.clock.wall_micros();
    let [seconds, micros] = parts(&answer)?;
    let part = |value| text(value)?.parse::<u64>().map_err(|_| unexpected());
    let theirs = part(seconds)? * 1_000_000 + part(micros)?;
    let offset = Duration::from_micros(theirs.abs_diff(before.midpoint(after)));
    if offset < NOTABLE_OFFSET {
        let offset = offset.as_secs_f64() * 1e3;
        return Ok(Finding::fine(format!("its clock differs by {offset:.0} ms")));
    }
    Ok(Finding::warning(
        format!("its clock differs from ours by {:.1} s", offset.as_secs_f64()),
        "leases do not compare clocks, but tokens follow the server's: if it is set back and \
         the server then loses its data, tokens repeat; run an NTP client",
    ))
}

/// What is to be said of any server that has locks.
pub(crate) async fn of_server(server: &Arc<Server>, info: &Info) -> [Finding; 5] {
    let what = format!("{} at {}", info.product(), server.host);
    let version = match info.version() >= OLDEST {
        true => Finding::fine(what),
        false => Finding::danger(what, "use Redis 6.0.6 or later, or Valkey"),
    };
    let role = match info.is_master() {
        true => Finding::fine("it is a master"),
        false => Finding::danger(
            "it is a replica",
            "locks cannot be taken here: connect to the master, or through Sentinel",
        ),
    };
    let evicted = match info.number("evicted_keys") {
        0 => Finding::fine("no key was evicted since it started"),
        count => Finding::danger(
            format!("{count} keys were evicted since it started"),
            "locks may have been among them: set maxmemory-policy noeviction and restart the server",
        ),
    };
    [version, role, eviction(info), evicted, persistence(server, info).await]
}

fn eviction(info: &Info) -> Finding {
    let advice = "a lock that is held may be thrown away with other keys: set maxmemory-policy \
                  noeviction, or use a server of its own for locks";
    match (info.eviction(), info.is_limited()) {
        (None, _) => Finding::fine("keys are never evicted (noeviction)"),
        (Some(policy), true) => Finding::danger(format!("keys are evicted ({policy})"), advice),
        (Some(policy), false) => {
            let what = format!("keys would be evicted ({policy}) if maxmemory were set");
            Finding::warning(what, advice)
        }
    }
}

async fn persistence(server: &Arc<Server>, info: &Info) -> Finding {
    if !info.persists() {
        let what = match setting(server, "save").await.as_deref() {
            Some("") | None => "nothing is kept on disk",
            Some(_) => "only snapshots are kept on disk",
        };
        let advice = "after a crash it forgets leases whose holders still work, so two may hold \
                      one lock until the first one's deadline (tokens still rise, by the clock): \
                      set appendonly yes";
        return Finding::warning(what, advice);
    }
    if info.get("aof_last_write_status").is_some_and(|status| status != "ok") {
        let advice = "it cannot write its log: look at the disk";
        return Finding::danger("its last write to disk failed", advice);
    }
    match setting(server, "appendfsync").await.as_deref() {
        Some("always") => Finding::fine("every write is on disk before it is answered"),
        fsync => Finding::warning(
            format!("a crash may lose the last second (appendfsync {})", fsync.unwrap_or("?")),
            "leases of that second are forgotten: set appendfsync always where that matters",
        ),
    }
}
