//! Redlock: ours beside the least that a quorum can be on the same driver, and beside other
//! libraries, on the same five servers in the same run. Afterwards no key may be left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use leasehold::{Locks, Owner};
use rslock::LockManager;
use tokio::runtime::Runtime;

use crate::Plan;
use crate::redis::server::Server;
use crate::report::{Goal, Row, Table};
use crate::stats::{Latencies, Sample, Start, latencies, median, record};

use least::Loop;
use nodes::Effort;
use peers::{node_redlock, redlock_py};

mod least;
mod nodes;
mod peers;

const COLUMNS: &[&str] =
    &["pairs/s", "cpu us", "nodes us", "calls", "p50", "p99", "to loop", "to token"];
const NODES: usize = 5;
const MAJORITY: usize = NODES / 2 + 1;
const NAMES: usize = 1024;
const TASKS: [usize; 2] = [1, 64];
/// A repetition is cut in slices that go round all cases, so that noise hits them all.
const SLICES: u32 = 4;
const TTL: Duration = Duration::from_secs(30);

/// What one case did, and what it cost the nodes.
type Measured = (Sample, Effort);

#[derive(Clone)]
enum Who {
    Loop(Loop),
    LoopWithToken(Loop),
    Ours(Locks),
    Rslock(LockManager),
}

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let servers = (0..NODES).map(|_| Server::start()).collect::<Result<Vec<_>>>()?;
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let hosts: Vec<_> = urls.iter().map(|url| url.trim_start_matches("redis://")).collect();
    let runtime = plan.runtime()?;
    let (least, ours) = runtime.block_on(async {
        let url = format!("redlock://{}", hosts.join(","));
        anyhow::Ok((Loop::open(&urls).await?, leasehold::connect(url).await?))
    })?;
    let rslock = LockManager::new(urls.clone());
    let mut cases = Vec::new();
    for tasks in TASKS.into_iter().filter(|tasks| plan.wants(&name("redlock", *tasks))) {
        cases.push((name("quorum loop", tasks), tasks, Who::Loop(least.clone())));
        cases.push((name("loop with token", tasks), tasks, Who::LoopWithToken(least.clone())));
        cases.push((name("redlock", tasks), tasks, Who::Ours(ours.clone())));
        cases.push((name("rslock", tasks), tasks, Who::Rslock(rslock.clone())));
    }
    let mut repetitions: Vec<Vec<Measured>> = Vec::new();
    for _ in 0..plan.repetitions(5) {
        let mut samples: Vec<Measured> =
            cases.iter().map(|_| (Sample::empty(), Effort::default())).collect();
        for _ in 0..SLICES {
            for ((_, tasks, who), (sample, effort)) in cases.iter().zip(&mut samples) {
                let before = runtime.block_on(Effort::of(&least.nodes))?;
                sample.extend(&slice(&runtime, *tasks, who, plan.measure / SLICES)?)?;
                effort.add_between(before, runtime.block_on(Effort::of(&least.nodes))?);
            }
        }
        repetitions.push(samples);
    }
    let mut rows = Vec::new();
    for (index, (name, _, who)) in cases.iter().enumerate() {
        let of = |figure: &dyn Fn(&[Measured]) -> f64| {
            median(repetitions.iter().map(|samples| figure(samples)))
        };
        let pairs = |samples: &[Measured]| samples[index].0.latencies.len() as f64;
        let ours = matches!(who, Who::Ours(_));
        // The loops come first, for each number of tasks.
        let first = index - index % 4;
        let ratio =
            |to: usize| of(&|samples| samples[index].0.per_second() / samples[to].0.per_second());
        let figures = vec![
            of(&|samples| samples[index].0.per_second()),
            of(&|samples| samples[index].0.cpu_each()),
            of(&|samples| samples[index].1.cpu / pairs(samples)),
            match ours {
                true => of(&|samples| samples[index].1.calls / NODES as f64 / pairs(samples)),
                false => f64::NAN,
            },
            of(&|samples| samples[index].0.quantile(0.5)),
            of(&|samples| samples[index].0.quantile(0.99)),
            ratio(first),
            ratio(first + 1),
        ];
        let goals = if ours { vec![Goal::AtLeast("to loop", 0.9)] } else { vec![] };
        rows.push(Row { case: name.clone(), figures, goals });
    }
    let orphans = runtime.block_on(orphans(&least))?;
    for (peer, tasks) in [("redlock-py", 1), ("node-redlock", 1), ("node-redlock", 64)] {
        let yardstick = rows.iter().find(|row| row.case == self::name("quorum loop", tasks));
        let Some(least) = yardstick.map(|row| row.figures[0]) else { continue };
        let rate = match peer {
            "redlock-py" => redlock_py(&hosts, plan.measure)?,
            _ => node_redlock(&hosts, tasks, plan.measure)?,
        };
        let rate = rate.unwrap_or(f64::NAN);
        let mut figures = vec![rate; 1];
        figures.resize(COLUMNS.len() - 2, f64::NAN);
        figures.extend([rate / least, f64::NAN]);
        rows.push(Row { case: self::name(peer, tasks), figures, goals: vec![] });
    }
    let notes = vec![
        "loop: SET NX PX on five nodes, on at a majority; compare and DEL by script, the same; \
         no token, nothing undone."
            .into(),
        "loop with token: the SET, and a token if it is new, by one script; otherwise the same."
            .into(),
        "cpu us: of this process; nodes us: of all five nodes; calls: at one node, for each pair."
            .into(),
        "redlock-py and node-redlock (no token) ran after the others; - where not installed."
            .into(),
        format!("keys of ours that are left on five nodes after the run: {orphans} (must be 0)."),
    ];
    Ok(Table { group: "redlock pairs", columns: COLUMNS, rows, notes })
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

async fn pairs_until(end: Instant, who: Who, names: Arc<[String]>) -> Result<Latencies> {
    let mut latencies = latencies();
    let mut before = Instant::now();
    for name in names.iter().cycle() {
        if before >= end {
            break;
        }
        match &who {
            Who::Ours(locks) => locks.lock(name).acquire().await?.release().await?,
            Who::Loop(least) => {
                let (key, owner) = (format!("raw:{name}"), Owner::random().to_string());
                least.take(&key, &owner).await?;
                least.give_back(&key, &owner).await?;
            }
            Who::LoopWithToken(least) => {
                let (key, owner) = (format!("token:{name}"), Owner::random().to_string());
                least.take_with_token(&key, &owner).await?;
                least.give_back(&key, &owner).await?;
            }
            Who::Rslock(manager) => {
                let key = format!("rslock:{name}");
                let lock = manager.lock(key.as_bytes(), TTL).await;
                let lock = lock.map_err(|error| anyhow::anyhow!("rslock: {error}"))?;
                manager.unlock(&lock).await;
            }
        }
        let after = Instant::now();
        record(&mut latencies, after - before);
        before = after;
    }
    Ok(latencies)
}

/// What is left of ours, a moment after the last release.
async fn orphans(least: &Loop) -> Result<usize> {
    let until = Instant::now() + Duration::from_secs(5);
    loop {
        let mut left = 0;
        for node in &least.nodes {
            let mut node = node.clone();
            let keys: Vec<String> =
                redis::cmd("KEYS").arg("lock:bench:*").query_async(&mut node).await?;
            left += keys.len();
        }
        if left == 0 || Instant::now() > until {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
