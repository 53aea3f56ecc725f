//! etcd: acquire + release beside the same transactions by hand, and contention beside
//! etcd's own lock service. A server of its own for every repetition, with fsync.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use leasehold::Locks;
use leasehold::backend::etcd::EtcdStore;
use leasehold::clock::Clock;
use leasehold_testkit::servers::Etcd;
use tokio::runtime::Builder;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::counters::Counters;
use crate::Plan;
use crate::report::{Goal, Row, Table};
use crate::stats::median;

mod counters;
mod driver;

const COLUMNS: &[&str] = &["per s", "us each", "to peer", "writes", "events"];
/// Enough for the server to be the limit.
const TASKS: usize = 64;
/// The lock service does about ten hand-overs per client and second: the number is fixed.
const CONTENDERS: usize = 16;
const CROWD: usize = 1_000;
/// The one that they contend for.
const LOCK: &str = "bench";

/// How much was done in how long, and what the server did for it.
#[derive(Debug, Clone, Copy)]
struct Done {
    count: usize,
    took: Duration,
    counted: Counters,
}

impl Done {
    fn per_second(&self) -> f64 {
        self.count as f64 / self.took.as_secs_f64()
    }

    fn each(&self, of: impl Fn(&Counters) -> f64) -> f64 {
        of(&self.counted) / self.count.max(1) as f64
    }
}

/// A case: its name, with which earlier one it is compared, and what it should reach.
struct Case {
    name: &'static str,
    peer: Option<usize>,
    goals: &'static [Goal],
    work: Work,
}

#[derive(Debug, Clone, Copy)]
enum Work {
    RawPairs(usize),
    Pairs(usize),
    LockService(usize),
    Contended(usize),
}

const CASES: &[Case] = &[
    Case { name: "raw txn + delete, 1 task", peer: None, goals: &[], work: Work::RawPairs(1) },
    Case {
        name: "etcd, 1 task",
        peer: Some(0),
        goals: &[Goal::AtLeast("to peer", 0.95)],
        work: Work::Pairs(1),
    },
    Case {
        name: "raw txn + delete, 64 tasks",
        peer: None,
        goals: &[],
        work: Work::RawPairs(TASKS),
    },
    Case {
        name: "etcd, 64 tasks",
        peer: Some(2),
        goals: &[Goal::AtLeast("to peer", 3.0)],
        work: Work::Pairs(TASKS),
    },
    Case {
        name: "v3 lock service, 16 clients",
        peer: None,
        goals: &[],
        work: Work::LockService(CONTENDERS),
    },
    Case {
        name: "etcd, 16 clients",
        peer: Some(4),
        goals: &[Goal::AtLeast("to peer", 4.5)],
        work: Work::Contended(CONTENDERS),
    },
    Case {
        name: "etcd, 1000 clients",
        peer: None,
        goals: &[Goal::AtMost("events", 40.0)],
        work: Work::Contended(CROWD),
    },
];

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let wanted = |index: usize| {
        let compared = CASES.iter().any(|case| plan.wants(case.name) && case.peer == Some(index));
        plan.wants(CASES[index].name) || compared
    };
    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(3) {
        let mut all = Vec::new();
        for (index, case) in CASES.iter().enumerate() {
            all.push(match wanted(index) {
                true => Some(measured(case.work, plan.measure)?),
                false => None,
            });
        }
        repetitions.push(all);
    }
    let rows = CASES.iter().enumerate().filter(|(index, _)| wanted(*index));
    let rows = rows.map(|(index, case)| row(index, case, &repetitions)).collect();
    let notes = vec![
        "to peer: by the raw loop or the lock service above it, medians of ratios.".into(),
        "writes: requests that the cluster agreed upon, for each pair or hand-over.".into(),
        "events: what the server sent to watches, for each hand-over.".into(),
    ];
    Ok(Table { group: "etcd", columns: COLUMNS, rows, notes })
}

fn row(index: usize, case: &Case, repetitions: &[Vec<Option<Done>>]) -> Row {
    let of = |figure: &dyn Fn(&[Option<Done>]) -> Option<f64>| {
        median(repetitions.iter().map(|all| figure(all).unwrap_or(f64::NAN)))
    };
    let rate = |all: &[Option<Done>], index: usize| all[index].map(|done| done.per_second());
    let figures = vec![
        of(&|all| rate(all, index)),
        of(&|all| rate(all, index).map(|rate| 1e6 / rate)),
        match case.peer {
            Some(peer) => of(&|all| Some(rate(all, index)? / rate(all, peer)?)),
            None => f64::NAN,
        },
        of(&|all| Some(all[index]?.each(|counted| counted.proposals))),
        match case.work {
            Work::Contended(_) | Work::LockService(_) => {
                of(&|all| Some(all[index]?.each(|counted| counted.events)))
            }
            _ => f64::NAN,
        },
    ];
    Row { case: case.name.to_owned(), figures, goals: case.goals.to_vec() }
}

/// One case on a fresh server.
fn measured(work: Work, measure: Duration) -> Result<Done> {
    let server = Etcd::start(1, &["--unsafe-no-fsync=false"])?;
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        match work {
            Work::RawPairs(tasks) => driver::pairs(&server, tasks, measure).await,
            Work::LockService(clients) => driver::lock_service(&server, clients, measure).await,
            Work::Pairs(tasks) => {
                let locks = client(&server).await?;
                let loops = (0..tasks).map(|task| (locks.clone(), format!("bench:{task}")));
                take_turns(&server, loops.collect(), measure, None).await
            }
            Work::Contended(clients) => {
                let mut loops = Vec::new();
                for _ in 0..clients {
                    loops.push((client(&server).await?, LOCK.to_owned()));
                }
                let opener = client(&server).await?;
                take_turns(&server, loops, measure, Some(opener)).await
            }
        }
    })
}

async fn client(server: &Etcd) -> Result<Locks> {
    let store = EtcdStore::open(&format!("{}/bench", server.url()), Clock::boot()).await?;
    Ok(Locks::on(store).await?)
}

/// Everybody takes and releases its lock until the time is over. An opener holds the one
/// that they contend for until all of them are in line.
async fn take_turns(
    server: &Etcd,
    loops: Vec<(Locks, String)>,
    measure: Duration,
    opener: Option<Locks>,
) -> Result<Done> {
    // The sessions are opened before.
    for (index, (locks, _)) in loops.iter().enumerate() {
        locks.lock(format!("warm:{index}")).acquire().await?.release().await?;
    }
    let (turns, clients) = (Arc::new(AtomicUsize::new(0)), loops.len());
    let barrier = match &opener {
        Some(opener) => Some(opener.lock(LOCK).acquire().await?),
        None => None,
    };
    let over = watch::Sender::new(false);
    let mut all = JoinSet::new();
    for (locks, name) in loops {
        let (turns, mut over) = (turns.clone(), over.subscribe());
        all.spawn(async move {
            loop {
                let lock = locks.lock(&name);
                let lease = tokio::select! {
                    biased;
                    // Who is in line at the end has no turn any more.
                    _ = over.wait_for(|over| *over) => return Ok(()),
                    lease = lock.acquire() => lease?,
                };
                turns.fetch_add(1, Ordering::Relaxed);
                lease.release().await?;
            }
        });
    }
    if let (Some(barrier), Some(opener)) = (barrier, &opener) {
        while opener.inspect(LOCK).await?.waiters < clients {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        barrier.release().await?;
    }
    let (before, at_first) = (Counters::read(server.addr(0))?, turns.load(Ordering::Relaxed));
    let began = Instant::now();
    tokio::time::sleep(measure).await;
    let (count, took) = (turns.load(Ordering::Relaxed) - at_first, began.elapsed());
    let counted = Counters::read(server.addr(0))? - before;
    over.send_replace(true);
    while let Some(done) = all.join_next().await {
        let ended: leasehold::Result<()> = done.context("a task")?;
        ended?;
    }
    Ok(Done { count, took, counted })
}
