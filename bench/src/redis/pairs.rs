//! Acquire + release on distinct names.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use leasehold::{Locks, Owner};
use tokio::runtime::Runtime;

use super::peers::Peer;
use super::raw::Raw;
use super::server::Server;
use crate::Plan;
use crate::report::{Goal, Row, Table};
use crate::stats::{Latencies, Sample, Start, latencies, median, record};

const COLUMNS: &[&str] = &["pairs/s", "us/pair", "cpu us", "p50", "p99", "to raw"];
pub(super) const NAMES: usize = 1024;
/// How many tasks the locks of others get.
const PEER_TASKS: usize = 64;
/// A repetition is cut in slices that go round all cases, so that noise hits them all.
const SLICES: u32 = 4;
const TASKS: [usize; 3] = [1, 64, 512];

#[derive(Clone)]
enum Who {
    Raw(Raw),
    Ours(Locks),
}

pub(crate) fn run(plan: &Plan, server: &Server) -> Result<Table> {
    let runtime = plan.runtime()?;
    let (raw, ours) = runtime.block_on(async {
        anyhow::Ok((Raw::open(&server.url()).await?, leasehold::connect(server.url()).await?))
    })?;
    let mut cases = Vec::new();
    for tasks in TASKS.into_iter().filter(|tasks| plan.wants(&name("redis", *tasks))) {
        cases.push((name("raw redis", tasks), tasks, Who::Raw(raw.clone())));
        cases.push((name("redis", tasks), tasks, Who::Ours(ours.clone())));
    }
    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(5) {
        let mut samples: Vec<_> = cases.iter().map(|_| Sample::empty()).collect();
        for _ in 0..SLICES {
            for ((_, tasks, who), sample) in cases.iter().zip(&mut samples) {
                sample.extend(&slice(&runtime, *tasks, who, plan.measure / SLICES)?)?;
            }
        }
        repetitions.push(samples);
    }
    let rows = cases.iter().enumerate().map(|(index, (name, ..))| {
        let of = |figure: &dyn Fn(&[Sample]) -> f64| {
            median(repetitions.iter().map(|samples| figure(samples)))
        };
        // Each of ours follows its yardstick.
        let yardstick = index & !1;
        let figures = vec![
            of(&|samples| samples[index].per_second()),
            of(&|samples| 1e6 / samples[index].per_second()),
            of(&|samples| samples[index].cpu_each()),
            of(&|samples| samples[index].quantile(0.5)),
            of(&|samples| samples[index].quantile(0.99)),
            of(&|samples| samples[index].per_second() / samples[yardstick].per_second()),
        ];
        let goals = if index == yardstick { vec![] } else { vec![Goal::AtLeast("to raw", 0.9)] };
        Row { case: name.clone(), figures, goals }
    });
    let mut rows: Vec<_> = rows.collect();
    for peer in Peer::ALL {
        let case = name(peer.name(), PEER_TASKS);
        if !plan.wants(&case) {
            continue;
        }
        let rate = peer.pairs(&runtime, server, PEER_TASKS, plan.measure)?;
        let rate = rate.unwrap_or(f64::NAN);
        // Beside the minimal loop with as many tasks.
        let raw = rows.iter().find(|row| row.case == name("raw redis", PEER_TASKS));
        let to_raw = raw.map_or(f64::NAN, |raw| rate / raw.figures[0]);
        let figures = vec![rate, 1e6 / rate, f64::NAN, f64::NAN, f64::NAN, to_raw];
        rows.push(Row { case, figures, goals: vec![] });
    }
    let notes = vec![
        "raw: SET NX PX and a token by script, compare and DEL by script, same driver.".into(),
        "cpu us: of this process. 1 task counts only when server and client are pinned:".into(),
        "(the locks of others have no token)".into(),
        "BENCH_SERVER_CPU=0 taskset -c 1 scripts/bench redis --only '1 task'.".into(),
    ];
    Ok(Table { group: "redis pairs", columns: COLUMNS, rows, notes })
}

fn name(who: &str, tasks: usize) -> String {
    format!("{who}, {tasks} task{}", if tasks == 1 { "" } else { "s" })
}

fn slice(runtime: &Runtime, tasks: usize, who: &Who, measure: Duration) -> Result<Sample> {
    runtime.block_on(async {
        let started = Start::now();
        let end = started.at + measure;
        let running: Vec<_> = (0..tasks)
            .map(|task| {
                let count = (NAMES / tasks).max(1);
                let names: Arc<[String]> =
                    (0..count).map(|index| format!("bench:{task}:{index}")).collect();
                tokio::spawn(pairs_until(end, who.clone(), names))
            })
            .collect();
        let mut all = latencies();
        for task in running {
            all.add(task.await??)?;
        }
        Ok(Sample::since(started, all))
    })
}

async fn pairs_until(end: Instant, mut who: Who, names: Arc<[String]>) -> Result<Latencies> {
    let mut latencies = latencies();
    let mut before = Instant::now();
    for name in names.iter().cycle() {
        if before >= end {
            break;
        }
        match &mut who {
            Who::Ours(locks) => locks.lock(name).acquire().await?.release().await?,
            Who::Raw(raw) => {
                let (key, owner) = (format!("raw:{name}"), Owner::random().to_string());
                ensure!(raw.take(&key, &owner, 30_000).await? > 0, "{key} is taken");
                ensure!(raw.give_back(&key, &owner).await? == 1, "{key} is gone");
            }
        }
        let after = Instant::now();
        record(&mut latencies, after - before);
        before = after;
    }
    Ok(latencies)
}
