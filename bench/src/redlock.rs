//! Redlock: ours beside the least that a quorum can be on the same driver, and beside other
//! libraries, on the same five servers in the same run. Afterwards no key may be left.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use leasehold::{Locks, Owner};
use redis::Script;
use redis::aio::MultiplexedConnection;
use rslock::LockManager;
use tokio::runtime::{Builder, Runtime};

use crate::Plan;
use crate::redis::raw::connection;
use crate::redis::server::Server;
use crate::report::{Goal, Row, Table};
use crate::stats::{Latencies, Sample, Start, latencies, median, record};
use crate::zookeeper::python;

const COLUMNS: &[&str] = &["pairs/s", "us/pair", "cpu us", "p50", "p99", "to loop"];
const NODES: usize = 5;
const MAJORITY: usize = NODES / 2 + 1;
const NAMES: usize = 1024;
const TASKS: [usize; 2] = [1, 64];
/// A repetition is cut in slices that go round all cases, so that noise hits them all.
const SLICES: u32 = 4;
const TTL: Duration = Duration::from_secs(30);

/// The least: the lock on all nodes at once, and on as soon as a majority answered; no token,
/// nothing undone.
#[derive(Clone)]
struct Loop {
    nodes: Vec<MultiplexedConnection>,
    give_back: Arc<Script>,
}

impl Loop {
    async fn open(urls: &[String]) -> Result<Self> {
        let mut nodes = Vec::new();
        for url in urls {
            nodes.push(connection(url).await?);
        }
        let give_back = "if redis.call('GET', KEYS[1]) == ARGV[1] then \
                         return redis.call('DEL', KEYS[1]) end return 0";
        Ok(Self { nodes, give_back: Arc::new(Script::new(give_back)) })
    }

    async fn take(&self, key: &str, owner: &str) -> Result<()> {
        let mut set = redis::cmd("SET");
        set.arg(key).arg(owner).arg("NX").arg("PX").arg(TTL.as_millis() as u64);
        let asking = self.nodes.iter().map(|node| {
            let (mut node, set) = (node.clone(), &set);
            async move { set.query_async::<Option<String>>(&mut node).await }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut granted = 0;
        while granted < MAJORITY {
            let answer = asking.next().await.context("no majority")??;
            granted += usize::from(answer.is_some());
        }
        Ok(())
    }

    async fn give_back(&self, key: &str, owner: &str) -> Result<()> {
        let asking = self.nodes.iter().map(|node| {
            let (mut node, mut call) = (node.clone(), self.give_back.prepare_invoke());
            call.key(key).arg(owner);
            async move { call.invoke_async::<usize>(&mut node).await }
        });
        let mut asking: FuturesUnordered<_> = asking.collect();
        let mut released = 0;
        while released < MAJORITY {
            let answer = asking.next().await.with_context(|| format!("{key} is gone"))??;
            released += answer;
        }
        Ok(())
    }
}

#[derive(Clone)]
enum Who {
    Loop(Loop),
    Ours(Locks),
    Rslock(LockManager),
}

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let servers = (0..NODES).map(|_| Server::start()).collect::<Result<Vec<_>>>()?;
    let urls: Vec<String> = servers.iter().map(Server::url).collect();
    let hosts: Vec<_> = urls.iter().map(|url| url.trim_start_matches("redis://")).collect();
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let (least, ours) = runtime.block_on(async {
        let url = format!("redlock://{}", hosts.join(","));
        anyhow::Ok((Loop::open(&urls).await?, leasehold::connect(url).await?))
    })?;
    let rslock = LockManager::new(urls.clone());
    let mut cases = Vec::new();
    for tasks in TASKS.into_iter().filter(|tasks| plan.wants(&name("redlock", *tasks))) {
        let yardstick = cases.len();
        let goal = vec![Goal::AtLeast("to loop", 0.9)];
        cases.push((
            name("quorum loop", tasks),
            tasks,
            Who::Loop(least.clone()),
            yardstick,
            vec![],
        ));
        cases.push((name("redlock", tasks), tasks, Who::Ours(ours.clone()), yardstick, goal));
        cases.push((name("rslock", tasks), tasks, Who::Rslock(rslock.clone()), yardstick, vec![]));
    }
    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(5) {
        let mut samples: Vec<_> = cases.iter().map(|_| Sample::empty()).collect();
        for _ in 0..SLICES {
            for ((_, tasks, who, ..), sample) in cases.iter().zip(&mut samples) {
                sample.extend(&slice(&runtime, *tasks, who, plan.measure / SLICES)?)?;
            }
        }
        repetitions.push(samples);
    }
    let mut rows = Vec::new();
    for (index, (name, _, _, yardstick, goals)) in cases.into_iter().enumerate() {
        let of = |figure: &dyn Fn(&[Sample]) -> f64| {
            median(repetitions.iter().map(|samples| figure(samples)))
        };
        let figures = vec![
            of(&|samples| samples[index].per_second()),
            of(&|samples| 1e6 / samples[index].per_second()),
            of(&|samples| samples[index].cpu_each()),
            of(&|samples| samples[index].quantile(0.5)),
            of(&|samples| samples[index].quantile(0.99)),
            of(&|samples| samples[index].per_second() / samples[yardstick].per_second()),
        ];
        rows.push(Row { case: name, figures, goals });
    }
    let orphans = runtime.block_on(orphans(&least))?;
    let mut notes = vec![
        "loop: SET NX PX on five nodes, on at a majority; compare and DEL by script, the same; \
         no token, nothing undone."
            .into(),
        format!("keys of ours that are left on five nodes after the run: {orphans} (must be 0)."),
    ];
    notes.push(match redlock_py(&hosts, plan.measure)? {
        Some(rate) => format!("redlock-py, 1 thread: {rate:.0} pairs/s."),
        None => "redlock-py is not there: scripts/test installs it, below target/foreign.".into(),
    });
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

/// redlock-py's pairs in a second, if it is installed.
fn redlock_py(hosts: &[&str], measure: Duration) -> Result<Option<f64>> {
    let Some(python) = python() else { return Ok(None) };
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../crates/leasehold-testkit/foreign/redlock_pairs.py"
    );
    let mut command = Command::new(python);
    command.arg(script).arg(measure.as_secs_f64().to_string()).args(hosts);
    let output = command.output()?;
    ensure!(output.status.success(), "redlock-py: {}", String::from_utf8_lossy(&output.stderr));
    let count: f64 = String::from_utf8_lossy(&output.stdout).trim().parse()?;
    Ok(Some(count / measure.as_secs_f64()))
}
