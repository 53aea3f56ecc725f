//! The client's CPU for each renewal, beside a task and a call for each lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use leasehold::backend::redis::RedisStore;
use leasehold::clock::Clock;
use leasehold::{Lease, LeaseState, Locks, Owner};
use tokio::task::JoinSet;

use super::raw::Raw;
use super::server::Server;
use crate::Plan;
use crate::counting::{Counting, Counts};
use crate::report::{Goal, Row, Table};
use crate::usage;

const COLUMNS: &[&str] = &["us each", "% core", "batch"];
const TTL: Duration = Duration::from_secs(30);
const LEASES: usize = 100_000;
/// Who acquires them.
const TASKS: usize = 64;

pub(crate) fn run(plan: &Plan, server: &Server) -> Result<Table> {
    let mut rows = Vec::new();
    let ours = format!("redis {}k, TTL 30 s", LEASES / 1000);
    let naive = format!("a task for each, {}k", LEASES / 1000);
    for (name, goals) in [(ours, vec![Goal::AtMost("us each", 1.5)]), (naive, vec![])] {
        if !plan.wants(&name) {
            continue;
        }
        let runtime = plan.runtime()?;
        let figures = match goals.is_empty() {
            true => runtime.block_on(each_by_itself(server))?,
            false => runtime.block_on(kept(server))?,
        };
        runtime.shutdown_background();
        rows.push(Row { case: name, figures: figures.to_vec(), goals });
    }
    let notes =
        vec!["us each: CPU of this process for each renewed lease; the server's not.".into()];
    Ok(Table { group: "redis holding", columns: COLUMNS, rows, notes })
}

async fn kept(server: &Server) -> Result<[f64; 3]> {
    let counts = Arc::<Counts>::default();
    let store = RedisStore::open(&server.url(), Clock::boot()).await?;
    let locks = Locks::on(Counting::new(store, counts.clone())).await?;
    let leases = acquire(&locks).await?;
    let (cpu, before) = (usage::cpu(), counts.renewals.get());
    // Two whole rounds of renewals.
    let window = TTL * 2 / 3;
    tokio::time::sleep(window).await;
    let (cpu, after) = (usage::cpu() - cpu, counts.renewals.get());
    let (renewed, requests) = (after.0 - before.0, after.1 - before.1);
    let held = leases.iter().filter(|lease| lease.state() == LeaseState::Held).count();
    if held < LEASES {
        bail!("of {LEASES} leases only {held} are held");
    }
    // They lapse: giving them back is not what is measured.
    leases.into_iter().for_each(std::mem::forget);
    Ok(figures(cpu, window, renewed, renewed as f64 / requests as f64))
}

fn figures(cpu: Duration, window: Duration, renewed: u64, batch: f64) -> [f64; 3] {
    let share = cpu.as_secs_f64() / window.as_secs_f64();
    [cpu.as_secs_f64() * 1e6 / renewed as f64, 100.0 * share, batch]
}

async fn acquire(locks: &Locks) -> Result<Vec<Lease>> {
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        running.spawn(async move {
            let mut leases = Vec::new();
            for index in (task..LEASES).step_by(TASKS) {
                leases.push(locks.lock(format!("held:{index}")).ttl(TTL).acquire().await?);
            }
            anyhow::Ok(leases)
        });
    }
    let mut all = Vec::new();
    while let Some(leases) = running.join_next().await {
        all.append(&mut leases??);
    }
    Ok(all)
}

/// What many libraries do.
async fn each_by_itself(server: &Server) -> Result<[f64; 3]> {
    let raw = Raw::open(&server.url()).await?;
    let ttl = TTL.as_millis() as u64;
    let renewed = Arc::<AtomicU64>::default();
    let mut tasks = JoinSet::new();
    for index in 0..LEASES {
        let (mut raw, renewed) = (raw.clone(), renewed.clone());
        tasks.spawn(async move {
            let (name, owner) = (format!("naive:{index}"), Owner::random().to_string());
            ensure!(raw.take(&name, &owner, ttl).await? > 0, "{name} is taken");
            loop {
                tokio::time::sleep(TTL / 3).await;
                ensure!(raw.renew(&name, &owner, ttl).await? == 1, "{name} is gone");
                renewed.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
    // The first round begins a third of the TTL after the last was taken, at the latest.
    tokio::time::sleep(TTL / 3 + Duration::from_secs(3)).await;
    let (cpu, before) = (usage::cpu(), renewed.load(Ordering::Relaxed));
    let window = TTL * 2 / 3;
    tokio::time::sleep(window).await;
    let (cpu, after) = (usage::cpu() - cpu, renewed.load(Ordering::Relaxed));
    if let Some(ended) = tasks.try_join_next() {
        ended??;
    }
    Ok(figures(cpu, window, after - before, 1.0))
}
