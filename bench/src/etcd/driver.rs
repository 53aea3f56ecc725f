//! The yardsticks, on the same driver: what a lock cannot do without, by hand; and etcd's
//! own lock service.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use etcd_client::{Client, Compare, CompareOp, LockOptions, PutOptions, Txn, TxnOp};
use leasehold_faults::servers::Etcd;
use tokio::task::JoinSet;

use super::Done;
use super::counters::Counters;

/// Longer than any run.
const LEASE: i64 = 600;

/// The raw loop's client.
pub(super) struct Raw {
    client: Client,
    lease: i64,
}

impl Raw {
    pub(super) async fn connect(server: &Etcd) -> Result<Self> {
        let mut client = Client::connect([server.endpoint(0)], None).await?;
        let lease = client.lease_grant(LEASE, None).await?.id();
        Ok(Self { client, lease })
    }

    /// A transaction that puts a key which is not there, and its deletion.
    pub(super) async fn pairs(
        &self,
        server: &Etcd,
        tasks: usize,
        measure: Duration,
    ) -> Result<Done> {
        let (count, lease) = (Arc::new(AtomicUsize::new(0)), self.lease);
        let before = Counters::read(server.addr(0))?;
        let began = Instant::now();
        let mut all = JoinSet::new();
        for task in 0..tasks {
            let (mut kv, count) = (self.client.kv_client(), count.clone());
            all.spawn(async move {
                let key = format!("raw/{task}/{lease:x}");
                while began.elapsed() < measure {
                    let put = TxnOp::put(&*key, "", Some(PutOptions::new().with_lease(lease)));
                    let absent = Compare::create_revision(&*key, CompareOp::Equal, 0);
                    kv.txn(Txn::new().when([absent]).and_then([put])).await?;
                    kv.delete(&*key, None).await?;
                    count.fetch_add(1, Ordering::Relaxed);
                }
                Ok::<_, etcd_client::Error>(())
            });
        }
        while let Some(done) = all.join_next().await {
            done.context("a task")??;
        }
        let (count, took) = (count.load(Ordering::Relaxed), began.elapsed());
        Ok(Done { count, took, counted: Counters::read(server.addr(0))? - before })
    }
}

/// One lock, and as many clients with a connection and a lease of their own.
pub(super) async fn lock_service(server: &Etcd, clients: usize, measure: Duration) -> Result<Done> {
    let count = Arc::new(AtomicUsize::new(0));
    let mut connected = Vec::new();
    for _ in 0..clients {
        let mut client = Client::connect([server.endpoint(0)], None).await?;
        let lease = client.lease_grant(LEASE, None).await?.id();
        connected.push((client, lease));
    }
    let before = Counters::read(server.addr(0))?;
    let began = Instant::now();
    let mut all = JoinSet::new();
    for (mut client, lease) in connected {
        let count = count.clone();
        all.spawn(async move {
            while began.elapsed() < measure {
                let options = LockOptions::new().with_lease(lease);
                let key = client.lock("service", Some(options)).await?.key().to_vec();
                count.fetch_add(1, Ordering::Relaxed);
                client.unlock(key).await?;
            }
            Ok::<_, etcd_client::Error>(())
        });
    }
    tokio::time::sleep(measure.saturating_sub(began.elapsed())).await;
    let (count, took) = (count.load(Ordering::Relaxed), began.elapsed());
    let counted = Counters::read(server.addr(0))? - before;
    while let Some(done) = all.join_next().await {
        done.context("a task")??;
    }
    Ok(Done { count, took, counted })
}
