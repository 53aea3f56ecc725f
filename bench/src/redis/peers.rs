//! Locks of other makers, in the same run.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold::clock::Clock;
use rslock::LockManager;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::pairs::NAMES;
use super::server::Server;
use crate::contender::Turn;

const TTL: Duration = Duration::from_secs(30);

/// Who makes a lock.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Peer {
    Rslock,
    RedisPy,
    PythonRedisLock,
    NodeRedlock,
}

impl Peer {
    pub(crate) const ALL: [Self; 4] =
        [Self::Rslock, Self::RedisPy, Self::PythonRedisLock, Self::NodeRedlock];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Rslock => "rslock",
            Self::RedisPy => "redis-py",
            Self::PythonRedisLock => "python-redis-lock",
            Self::NodeRedlock => "node-redlock",
        }
    }

    /// Acquire + release on distinct names, in a second; `None` where it is not installed.
    pub(crate) fn pairs(
        self,
        runtime: &Runtime,
        server: &Server,
        tasks: usize,
        measure: Duration,
    ) -> Result<Option<f64>> {
        let count = match self {
            Self::Rslock => Some(runtime.block_on(rslock_pairs(server, tasks, measure))?),
            _ => match self.say("pairs", server, tasks, measure, Duration::ZERO)? {
                Some(said) => Some(said.trim().parse()?),
                None => None,
            },
        };
        Ok(count.map(|count: u64| count as f64 / measure.as_secs_f64()))
    }

    /// The turns of clients that want one lock; `None` where it is not installed.
    pub(crate) fn turns(
        self,
        runtime: &Runtime,
        server: &Server,
        clients: usize,
        measure: Duration,
        pause: Duration,
    ) -> Result<Option<Vec<Turn>>> {
        if let Self::Rslock = self {
            return runtime.block_on(rslock_turns(server, clients, measure, pause)).map(Some);
        }
        let said = self.say("turns", server, clients, measure, pause)?;
        said.map(|said| said.lines().map(str::parse).collect()).transpose()
    }

    /// What its script says.
    fn say(
        self,
        what: &str,
        server: &Server,
        clients: usize,
        measure: Duration,
        pause: Duration,
    ) -> Result<Option<String>> {
        let scripts = concat!(env!("CARGO_MANIFEST_DIR"), "/peers");
        let python = foreign()?.join("bin/python");
        let mut command = match self {
            Self::NodeRedlock => {
                let Some(node) = node_packages()? else { return Ok(None) };
                let mut command = Command::new("node");
                command.arg(format!("{scripts}/node_redlock.mjs")).env("NODE_PEERS", node);
                command
            }
            Self::RedisPy | Self::PythonRedisLock if python.exists() => {
                let mut command = Command::new(python);
                command.arg(format!("{scripts}/redis_locks.py")).arg(self.name());
                command
            }
            _ => return Ok(None),
        };
        command.args([what, &server.port().to_string(), &clients.to_string()]);
        command.args([measure, pause].map(|duration| duration.as_secs_f64().to_string()));
        let output = command.output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure!(output.status.success(), "{}: {said}", self.name());
        Ok(Some(String::from_utf8(output.stdout)?))
    }
}

/// Where scripts/test and scripts/bench install them: beside the folder of this program.
fn foreign() -> Result<PathBuf> {
    let program = std::env::current_exe()?;
    Ok(program.ancestors().nth(2).context("a target")?.join("foreign"))
}

/// Where npm's packages are, if they are installed.
pub(crate) fn node_packages() -> Result<Option<PathBuf>> {
    let node = foreign()?.join("node");
    Ok(node.join("node_modules").exists().then_some(node))
}

async fn rslock_pairs(server: &Server, tasks: usize, measure: Duration) -> Result<u64> {
    let manager = LockManager::new(vec![server.url()]);
    let end = Instant::now() + measure;
    let count = Arc::<AtomicU64>::default();
    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (manager, count) = (manager.clone(), count.clone());
        running.spawn(async move {
            let names: Vec<_> =
                (0..(NAMES / tasks).max(1)).map(|index| format!("rslock:{task}:{index}")).collect();
            for name in names.iter().cycle() {
                if Instant::now() >= end {
                    break;
                }
                let lock = manager.lock(name.as_bytes(), TTL).await?;
                manager.unlock(&lock).await;
                count.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(count.load(Ordering::Relaxed))
}

async fn rslock_turns(
    server: &Server,
    clients: usize,
    measure: Duration,
    pause: Duration,
) -> Result<Vec<Turn>> {
    let clock = Clock::boot();
    let end = clock.now() + measure;
    let mut running = JoinSet::new();
    for client in 0..clients {
        let (manager, clock) = (LockManager::new(vec![server.url()]), clock.clone());
        running.spawn(async move {
            let mut turns = Vec::new();
            loop {
                let asked = clock.now();
                if asked >= end {
                    return anyhow::Ok(turns);
                }
                let lock = manager.acquire_no_guard(&b"rslock:contended"[..], TTL).await?;
                let granted = clock.now();
                let (token, released) = (granted.as_nanos(), clock.now());
                turns.push(Turn { client, token, asked, granted, released });
                manager.unlock(&lock).await;
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
        });
    }
    let mut all = Vec::new();
    while let Some(turns) = running.join_next().await {
        all.append(&mut turns??);
    }
    Ok(all)
}
