//! A thousand clients and one lock: nobody starves.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::Result;
use leasehold::clock::Clock;
use tokio::task::JoinSet;

use super::server::Server;
use crate::Plan;
use crate::contender::{Rhythm, Turn, Wanted, contend};
use crate::handover::figures;
use crate::report::{Goal, Row, Table};

const CLIENTS: usize = 1000;
/// Long enough for each to have several turns.
const SHORTEST: Duration = Duration::from_secs(4);
const COLUMNS: &[&str] = &["turns/s", "wait ms", "x fair", "self %", "fewest", "most"];

pub(crate) fn run(plan: &Plan, server: &Server) -> Result<Table> {
    let mut rows = Vec::new();
    let case = format!("redis, {CLIENTS} clients");
    if plan.wants(&case) {
        let runtime = plan.runtime()?;
        let turns = runtime.block_on(contended(server, plan.measure.max(SHORTEST)))?;
        let mut each = HashMap::<usize, usize>::new();
        for turn in &turns {
            *each.entry(turn.client).or_default() += 1;
        }
        let fewest = if each.len() == CLIENTS { each.values().min() } else { None };
        let counts = [fewest, each.values().max()].map(|count| *count.unwrap_or(&0) as f64);
        let [rate, _, _, wait, again] = figures(turns)?;
        let figures = vec![rate, wait, fair(wait, CLIENTS, rate), again, counts[0], counts[1]];
        let goals = vec![Goal::AtLeast("fewest", 1.0), Goal::AtMost("x fair", 3.0)];
        rows.push(Row { case, figures, goals });
    }
    let notes = vec![
        "fewest, most: turns of one client. x fair: the longest wait by the time in \
                      which everybody has a turn."
            .into(),
    ];
    Ok(Table { group: "redis crowd", columns: COLUMNS, rows, notes })
}

/// How many times as long somebody waited as when all take turns.
pub(super) fn fair(wait_ms: f64, clients: usize, rate: f64) -> f64 {
    wait_ms / 1e3 / (clients as f64 / rate)
}

async fn contended(server: &Server, measure: Duration) -> Result<Vec<Turn>> {
    let mut locks = Vec::new();
    for _ in 0..CLIENTS {
        locks.push(leasehold::connect(server.url()).await?.lock("crowded"));
    }
    let rhythm = Rhythm { hold: Duration::ZERO, pause: Duration::ZERO };
    let end = Clock::boot().now() + measure;
    let mut running = JoinSet::new();
    for (client, lock) in locks.into_iter().enumerate() {
        running.spawn(contend(client, Wanted::Lease(lock), rhythm, end));
    }
    let mut all = Vec::new();
    while let Some(turns) = running.join_next().await {
        all.append(&mut turns??);
    }
    Ok(all)
}
