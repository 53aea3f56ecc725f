//! The yardsticks: what a lock cannot do without, by hand on the same driver; the driver's
//! own lock; kazoo's.

use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold_faults::servers::Zookeeper;
use tokio::task::JoinSet;
use zookeeper_client::{Acls, Client, CreateMode, CreateOptions, Error, LockPrefix};

use super::Done;

const LASTING: &CreateOptions<'static> = &CreateMode::Persistent.with_acls(Acls::anyone_all());
const IN_LINE: &CreateOptions<'static> =
    &CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());

/// About as much as our nodes say.
const DATA: &[u8] = &[b'x'; 80];

async fn connect(server: &Zookeeper) -> Result<Client> {
    let connector = Client::connector().with_session_timeout(Duration::from_secs(30));
    Ok(connector.connect(&server.addr().to_string()).await?)
}

async fn make(client: &Client, path: &str) -> Result<()> {
    match client.create(path, b"", LASTING).await {
        Ok(_) | Err(Error::NodeExists) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// A node created and deleted, by many tasks on one session.
pub(super) async fn raw(server: &Zookeeper, tasks: usize, measure: Duration) -> Result<Done> {
    let client = connect(server).await?;
    make(&client, "/raw").await?;
    for task in 0..tasks {
        make(&client, &format!("/raw/{task}")).await?;
    }
    let count = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let (client, count) = (client.clone(), count.clone());
        all.spawn(async move {
            let prefix = format!("/raw/{task}/n-");
            while began.elapsed() < measure {
                let (_, sequence) = client.create(&prefix, DATA, IN_LINE).await?;
                client.delete(&format!("{prefix}{sequence}"), None).await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, Error>(())
        });
    }
    tokio::time::sleep(measure.saturating_sub(began.elapsed())).await;
    let done = Done { count: count.load(Ordering::Relaxed), took: began.elapsed() };
    while let Some(ended) = all.join_next().await {
        ended.context("a task")??;
    }
    Ok(done)
}

/// The lock that the driver has itself: one for as many clients.
pub(super) async fn drivers_lock(
    server: &Zookeeper,
    clients: usize,
    measure: Duration,
) -> Result<Done> {
    let mut connected = Vec::new();
    for _ in 0..clients {
        connected.push(connect(server).await?);
    }
    make(&connected[0], "/driver").await?;
    let count = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for client in connected {
        let count = count.clone();
        all.spawn(async move {
            while began.elapsed() < measure {
                let prefix = LockPrefix::new_curator("/driver", "lock-")?;
                let lock = client.lock(prefix, DATA, Acls::anyone_all()).await?;
                count.fetch_add(1, Ordering::Relaxed);
                // Not by dropping it, which deletes it in the background: we wait for ours, too.
                let path = lock.lock_path().to_owned();
                std::mem::forget(lock);
                client.delete(&path, None).await?;
            }
            Ok::<_, Error>(())
        });
    }
    tokio::time::sleep(measure.saturating_sub(began.elapsed())).await;
    let done = Done { count: count.load(Ordering::Relaxed), took: began.elapsed() };
    while let Some(ended) = all.join_next().await {
        ended.context("a task")??;
    }
    Ok(done)
}

/// kazoo's lock, if it is installed.
pub(super) fn kazoo(server: &Zookeeper, clients: usize, measure: Duration) -> Result<Option<Done>> {
    let Some(python) = python() else { return Ok(None) };
    let script =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../crates/leasehold-faults/foreign/kazoo_turns.py");
    let output = Command::new(python)
        .arg(script)
        .args([server.addr().to_string(), "/kazoo".to_owned()])
        .args([measure.as_secs_f64().to_string(), clients.to_string()])
        .output()?;
    ensure!(output.status.success(), "kazoo: {}", String::from_utf8_lossy(&output.stderr));
    let count = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok(Some(Done { count, took: measure }))
}

/// Python with kazoo, where scripts/test puts it: beside the folder of this program.
pub(crate) fn python() -> Option<PathBuf> {
    let program = std::env::current_exe().ok()?;
    let python = program.parent()?.parent()?.join("foreign/bin/python");
    python.exists().then_some(python)
}
