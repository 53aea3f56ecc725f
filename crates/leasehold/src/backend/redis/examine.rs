//! What about a server's set-up is unsafe: for `doctor`, and for refusing it at once.

use std::sync::Arc;
use std::time::Duration;

use super::RedisStore;
use super::answer::text;
use super::error::unexpected;
use super::info::{Info, setting};
use super::server::Server;
use crate::backend::{Finding, Severity};
use crate::error::{Error, ErrorKind, Result};

/// A difference between clocks that deserves a word.
const NOTABLE_OFFSET: Duration = Duration::from_secs(1);

/// The first that can say where somebody stands in a list.
const OLDEST: (u32, u32, u32) = (6, 0, 6);

/// Refuses a server on which locks cannot work, or not safely.
pub(in crate::backend) fn refuse_unsafe(
    server: &Server,
    info: &Info,
    allow_unsafe: bool,
) -> Result<()> {
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

impl RedisStore {
    pub(in crate::backend) async fn findings(&self) -> Result<Vec<Finding>> {
        let mut findings = self.route.examine().await?;
        for server in self.route.masters().await? {
            findings.extend(self.examine_server(&server).await?);
        }
        Ok(findings)
    }

    async fn examine_server(&self, server: &Arc<Server>) -> Result<Vec<Finding>> {
        let info = Info::ask(server).await?;
        let mut findings = vec![
            version(server, &info),
            role(&info),
            eviction(&info),
            evicted(&info),
            persistence(server, &info).await,
        ];
        findings.extend(self.replication(server, &info).await);
        findings.push(self.clock_offset(server).await?);
        Ok(findings)
    }

    async fn replication(&self, server: &Arc<Server>, info: &Info) -> Vec<Finding> {
        let replicas = info.number("connected_slaves");
        let mut findings = Vec::new();
        if u64::from(self.settings.wait_replicas) > replicas {
            findings.push(Finding::new(
                Severity::Unsafe,
                format!(
                    "wait-replicas is {}, but {replicas} are there",
                    self.settings.wait_replicas
                ),
                "no lock can be had until there are as many: see to the replicas",
            ));
        }
        if replicas == 0 {
            findings.push(fine("no replica: nothing takes over when this server is lost"));
            return findings;
        }
        let least = setting(server, "min-replicas-to-write").await;
        findings.push(match least.as_deref().and_then(|least| least.parse::<u64>().ok()) {
            Some(0) => Finding::new(
                Severity::Warning,
                format!("{replicas} replicas, and min-replicas-to-write is 0"),
                "a master that is cut off goes on granting locks that a fail-over forgets: set \
                 min-replicas-to-write 1 and min-replicas-max-lag 10",
            ),
            Some(least) => fine(format!("{replicas} replicas, of which {least} must be near")),
            None => fine(format!("{replicas} replicas; min-replicas-to-write cannot be read")),
        });
        findings
    }

    async fn clock_offset(&self, server: &Arc<Server>) -> Result<Finding> {
        let before = self.clock.wall_micros();
        let answer = server.ask_in_time(&redis::cmd("TIME")).await?;
        let after = self.clock.wall_micros();
        let redis::Value::Array(parts) = answer else { return Err(unexpected()) };
        let [seconds, micros] = &parts[..] else { return Err(unexpected()) };
        let part = |value| text(value)?.parse::<u64>().map_err(|_| unexpected());
        let theirs = part(seconds)? * 1_000_000 + part(micros)?;
        let offset = Duration::from_micros(theirs.abs_diff(before.midpoint(after)));
        if offset < NOTABLE_OFFSET {
            return Ok(fine(format!("its clock differs by {:.0} ms", offset.as_secs_f64() * 1e3)));
        }
        Ok(Finding::new(
            Severity::Warning,
            format!("its clock differs from ours by {:.1} s", offset.as_secs_f64()),
            "leases do not compare clocks, but tokens follow the server's: if it is set back and \
             the server then loses its data, tokens repeat; run an NTP client",
        ))
    }
}

pub(in crate::backend) fn fine(what: impl Into<String>) -> Finding {
    Finding::new(Severity::Fine, what, "")
}

pub(in crate::backend) fn version(server: &Server, info: &Info) -> Finding {
    let what = format!("{} at {}", info.product(), server.host);
    match info.version() >= OLDEST {
        true => fine(what),
        false => Finding::new(Severity::Unsafe, what, "use Redis 6.0.6 or later, or Valkey"),
    }
}

pub(in crate::backend) fn role(info: &Info) -> Finding {
    match info.is_master() {
        true => fine("it is a master"),
        false => Finding::new(
            Severity::Unsafe,
            "it is a replica",
            "locks cannot be taken here: connect to the master, or through Sentinel",
        ),
    }
}

pub(in crate::backend) fn eviction(info: &Info) -> Finding {
    let advice = "a lock that is held may be thrown away with other keys: set maxmemory-policy \
                  noeviction, or use a server of its own for locks";
    match (info.eviction(), info.is_limited()) {
        (None, _) => fine("keys are never evicted (noeviction)"),
        (Some(policy), true) => {
            Finding::new(Severity::Unsafe, format!("keys are evicted ({policy})"), advice)
        }
        (Some(policy), false) => {
            let what = format!("keys would be evicted ({policy}) if maxmemory were set");
            Finding::new(Severity::Warning, what, advice)
        }
    }
}

pub(in crate::backend) fn evicted(info: &Info) -> Finding {
    match info.number("evicted_keys") {
        0 => fine("no key was evicted since it started"),
        count => Finding::new(
            Severity::Unsafe,
            format!("{count} keys were evicted since it started"),
            "locks may have been among them: set maxmemory-policy noeviction and restart the server",
        ),
    }
}

pub(in crate::backend) async fn persistence(server: &Arc<Server>, info: &Info) -> Finding {
    let forgets = "after a crash it forgets leases whose holders still work, so two may hold one \
                   lock until the first one's deadline (tokens still rise, by the clock): set \
                   appendonly yes";
    if info.persists() {
        let failed = info.get("aof_last_write_status").is_some_and(|status| status != "ok");
        if failed {
            let advice = "it cannot write its log: look at the disk";
            return Finding::new(Severity::Unsafe, "its last write to disk failed", advice);
        }
        return match setting(server, "appendfsync").await.as_deref() {
            Some("always") => fine("every write is on disk before it is answered"),
            fsync => Finding::new(
                Severity::Warning,
                format!("a crash may lose the last second (appendfsync {})", fsync.unwrap_or("?")),
                "leases of that second are forgotten: set appendfsync always where that matters",
            ),
        };
    }
    match setting(server, "save").await.as_deref() {
        Some("") | None => Finding::new(Severity::Warning, "nothing is kept on disk", forgets),
        Some(_) => Finding::new(Severity::Warning, "only snapshots are kept on disk", forgets),
    }
}
