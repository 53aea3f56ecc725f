//! ZooKeeper: acquire + release beside the same two requests by hand, and contention beside
//! the driver's own lock and kazoo's. One server for a repetition, with fsync.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leasehold::Locks;
use leasehold_faults::servers::Zookeeper;
use tokio::task::JoinSet;

use crate::Plan;
use crate::report::{Goal, Row, Table};
use crate::stats::median;

mod peers;
pub(crate) use peers::python;

const COLUMNS: &[&str] = &["per s", "us each", "to peer", "to kazoo"];
/// Enough for the server to be the limit.
const TASKS: usize = 64;
const CONTENDERS: usize = 16;
/// The server as its users have it: it flushes its log, and is compiled as well as it can be
/// (what tests start is compiled quickly instead, and needs half as much CPU time again).
const JAVA: &[&str] = &["-Dzookeeper.forceSync=yes", "-Xmx512m", "-XX:TieredStopAtLevel=4"];
/// Until most of it is compiled: each kind of work for so long, before anything counts.
const WARM_UP: Duration = Duration::from_secs(2);

/// How much was done in how long.
#[derive(Debug, Clone, Copy)]
struct Done {
    count: usize,
    took: Duration,
}

impl Done {
    fn per_second(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// A node created and deleted by hand.
    Raw(usize),
    Ours(usize),
    /// The driver's own lock.
    DriversLock,
    Kazoo,
    Contended,
}

struct Case {
    name: &'static str,
    work: Work,
    /// What it is compared with: those cases' mean, which bracket it.
    peers: &'static [usize],
    goals: &'static [Goal],
}

const fn case(name: &'static str, work: Work) -> Case {
    Case { name, work, peers: &[], goals: &[] }
}

/// A server warms up: what others are compared with runs before and after them.
const CASES: &[Case] = &[
    case("raw, 1 task", Work::Raw(1)),
    Case {
        peers: &[0, 2],
        goals: &[Goal::AtLeast("to peer", 0.75)],
        ..case("zookeeper, 1 task", Work::Ours(1))
    },
    case("raw, 1 task, again", Work::Raw(1)),
    case("raw, 64 tasks", Work::Raw(TASKS)),
    Case {
        peers: &[3, 5],
        goals: &[Goal::AtLeast("to peer", 2.0)],
        ..case("zookeeper, 64 tasks", Work::Ours(TASKS))
    },
    case("raw, 64 tasks, again", Work::Raw(TASKS)),
    case("driver's lock, 16 clients", Work::DriversLock),
    Case {
        peers: &[6, 8],
        goals: &[Goal::AtLeast("to peer", 1.1), Goal::AtLeast("to kazoo", 2.5)],
        ..case("zookeeper, 16 clients", Work::Contended)
    },
    case("driver's lock, again", Work::DriversLock),
    case("kazoo, 16 clients", Work::Kazoo),
];
const KAZOO: usize = 9;
const CONTENDED: usize = 7;

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let wanted = |index: usize| {
        let compared = |case: &Case| {
            let kazoo = index == KAZOO && case.work == Work::Contended;
            plan.wants(case.name) && (case.peers.contains(&index) || kazoo)
        };
        plan.wants(CASES[index].name) || CASES.iter().any(compared)
    };
    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(3) {
        let server = Zookeeper::start_with("", JAVA)?;
        for work in [Work::Raw(TASKS), Work::Ours(TASKS)] {
            measured(&server, work, plan, WARM_UP)?;
        }
        let mut all = Vec::new();
        for (index, case) in CASES.iter().enumerate() {
            all.push(match wanted(index) {
                true => measured(&server, case.work, plan, plan.measure)?,
                false => None,
            });
        }
        repetitions.push(all);
    }
    let rows = CASES.iter().enumerate().filter(|(index, _)| wanted(*index));
    let rows = rows.map(|(index, case)| row(index, case, &repetitions)).collect();
    let mut notes = vec![
        "to peer: by the mean of what ran just before and after it, medians of ratios.".into(),
        "raw: an ephemeral sequential node created and deleted, all tasks on one session.".into(),
    ];
    if peers::python().is_none() {
        notes.push("kazoo is not there: scripts/test installs it, below target/foreign.".into());
    }
    Ok(Table { group: "zookeeper", columns: COLUMNS, rows, notes })
}

fn row(index: usize, case: &Case, repetitions: &[Vec<Option<Done>>]) -> Row {
    let of = |figure: &dyn Fn(&[Option<Done>]) -> Option<f64>| {
        median(repetitions.iter().map(|all| figure(all).unwrap_or(f64::NAN)))
    };
    let rate = |all: &[Option<Done>], index: usize| all[index].map(|done| done.per_second());
    let peers = |all: &[Option<Done>]| {
        let rates: Option<Vec<_>> = case.peers.iter().map(|peer| rate(all, *peer)).collect();
        let rates = rates.filter(|rates| !rates.is_empty())?;
        Some(rates.iter().sum::<f64>() / rates.len() as f64)
    };
    let figures = vec![
        of(&|all| rate(all, index)),
        of(&|all| rate(all, index).map(|rate| 1e6 / rate)),
        of(&|all| Some(rate(all, index)? / peers(all)?)),
        match index {
            CONTENDED => of(&|all| Some(rate(all, index)? / rate(all, KAZOO)?)),
            _ => f64::NAN,
        },
    ];
    Row { case: case.name.to_owned(), figures, goals: case.goals.to_vec() }
}

/// One case; `None` if the peer is not there.
fn measured(
    server: &Zookeeper,
    work: Work,
    plan: &Plan,
    measure: Duration,
) -> Result<Option<Done>> {
    let runtime = plan.runtime()?;
    runtime.block_on(async {
        Ok(Some(match work {
            Work::Raw(tasks) => peers::raw(server, tasks, measure).await?,
            Work::DriversLock => peers::drivers_lock(server, CONTENDERS, measure).await?,
            Work::Kazoo => return peers::kazoo(server, CONTENDERS, measure),
            Work::Ours(tasks) => {
                let locks = client(server).await?;
                let loops = (0..tasks).map(|task| (locks.clone(), format!("bench:{task}")));
                take_turns(loops.collect(), measure).await?
            }
            Work::Contended => {
                let mut loops = Vec::new();
                for _ in 0..CONTENDERS {
                    loops.push((client(server).await?, "contended".to_owned()));
                }
                take_turns(loops, measure).await?
            }
        }))
    })
}

async fn client(server: &Zookeeper) -> Result<Locks> {
    Ok(leasehold::connect(server.url("/ours")).await?)
}

/// Everybody takes and releases its lock until the time is over.
async fn take_turns(loops: Vec<(Locks, String)>, measure: Duration) -> Result<Done> {
    // The locks' nodes are there before.
    for (locks, name) in &loops {
        locks.lock(name).acquire().await?.release().await?;
    }
    let turns = Arc::new(AtomicUsize::new(0));
    let began = Instant::now();
    let mut all = JoinSet::new();
    for (locks, name) in loops {
        let turns = turns.clone();
        all.spawn(async move {
            while began.elapsed() < measure {
                let lease = locks.lock(&name).acquire().await?;
                turns.fetch_add(1, Ordering::Relaxed);
                lease.release().await?;
            }
            Ok::<_, leasehold::Error>(())
        });
    }
    tokio::time::sleep(measure.saturating_sub(began.elapsed())).await;
    let done = Done { count: turns.load(Ordering::Relaxed), took: began.elapsed() };
    while let Some(ended) = all.join_next().await {
        ended.context("a task")??;
    }
    Ok(done)
}
