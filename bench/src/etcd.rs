//! etcd: acquire + release beside the same transactions by hand, and contention beside
//! etcd's own lock service. A server of its own for every repetition, with fsync.
//!
//! The machine's speed moves from second to second, so pairs and their yardstick take short
//! turns on one server: both see the same weather.

use std::ops::AddAssign;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leasehold::Locks;
use leasehold::backend::etcd::EtcdStore;
use leasehold::clock::Clock;
use leasehold_faults::servers::Etcd;
use tokio::sync::watch;
use tokio::task::JoinSet;

use self::counters::Counters;
use crate::Plan;
use crate::report::{Goal, Row, Table};
use crate::stats::median;

mod counters;
mod driver;

/// How many turns the raw loop and ours take, one after the other.
const TURNS: u32 = 10;
const COLUMNS: &[&str] = &["per s", "us each", "to peer", "writes", "events"];
/// Enough for the server to be the limit.
const TASKS: usize = 64;
/// The lock service does about ten hand-overs per client and second: the number is fixed.
const CONTENDERS: usize = 16;
const CROWD: usize = 1_000;
/// How long a queue may take to form.
const FORMS_WITHIN: Duration = Duration::from_secs(60);
/// The one that they contend for.
const LOCK: &str = "bench";

/// How much was done in how long, and what the server did for it.
#[derive(Debug, Clone, Copy, Default)]
struct Done {
    count: usize,
    took: Duration,
    counted: Counters,
}

impl AddAssign for Done {
    fn add_assign(&mut self, more: Self) {
        self.count += more.count;
        self.took += more.took;
        self.counted += more.counted;
    }
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
    /// As many tasks as the raw loop of the case above has.
    Pairs,
    LockService(usize),
    Contended(usize),
}

const CASES: &[Case] = &[
    Case { name: "raw txn + delete, 1 task", peer: None, goals: &[], work: Work::RawPairs(1) },
    Case {
        name: "etcd, 1 task",
        peer: Some(0),
        goals: &[Goal::AtLeast("to peer", 0.95)],
        work: Work::Pairs,
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
        work: Work::Pairs,
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
        let mut all = vec![None; CASES.len()];
        for (index, case) in CASES.iter().enumerate().filter(|(index, _)| wanted(*index)) {
            match case.work {
                Work::RawPairs(tasks) => {
                    let (raw, ours) = pairs_in_turn(tasks, plan)?;
                    (all[index], all[index + 1]) = (Some(raw), Some(ours));
                }
                // Beside the raw ones, just before.
                Work::Pairs => {}
                Work::LockService(_) | Work::Contended(_) => {
                    all[index] = Some(contended(case.work, plan)?);
                }
            }
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

/// The raw loop and ours, in turn, on a fresh server.
fn pairs_in_turn(tasks: usize, plan: &Plan) -> Result<(Done, Done)> {
    let server = Etcd::start(1, &["--unsafe-no-fsync=false"])?;
    let (runtime, measure) = (plan.runtime()?, plan.measure);
    runtime.block_on(async {
        let driver = driver::Raw::connect(&server).await?;
        let locks = client(&server).await?;
        let loops: Vec<_> =
            (0..tasks).map(|task| (locks.clone(), format!("bench:{task}"))).collect();
        warm_up(&loops).await?;
        let (mut raw, mut ours) = (Done::default(), Done::default());
        for _ in 0..TURNS {
            raw += driver.pairs(&server, tasks, measure / TURNS).await?;
            ours += pairs(&server, &loops, measure / TURNS).await?;
        }
        Ok((raw, ours))
    })
}

/// One case on a fresh server.
fn contended(work: Work, plan: &Plan) -> Result<Done> {
    let server = Etcd::start(1, &["--unsafe-no-fsync=false"])?;
    let (runtime, measure) = (plan.runtime()?, plan.measure);
    runtime.block_on(async {
        match work {
            Work::LockService(clients) => driver::lock_service(&server, clients, measure).await,
            Work::Contended(clients) => {
                let mut loops = Vec::new();
                for _ in 0..clients {
                    loops.push((client(&server).await?, LOCK.to_owned()));
                }
                warm_up(&loops).await?;
                let opener = client(&server).await?;
                take_turns(&server, loops, measure, opener).await
            }
            Work::RawPairs(_) | Work::Pairs => unreachable!("measured in turn"),
        }
    })
}

async fn client(server: &Etcd) -> Result<Locks> {
    let store = EtcdStore::open(&format!("{}/bench", server.url()), Clock::boot()).await?;
    Ok(Locks::on(store).await?)
}

/// Opens the sessions.
async fn warm_up(loops: &[(Locks, String)]) -> Result<()> {
    for (index, (locks, _)) in loops.iter().enumerate() {
        locks.lock(format!("warm:{index}")).acquire().await?.release().await?;
    }
    Ok(())
}

/// Everybody takes and releases a lock of its own until the time is over.
async fn pairs(server: &Etcd, loops: &[(Locks, String)], measure: Duration) -> Result<Done> {
    let count = Arc::new(AtomicUsize::new(0));
    let before = Counters::read(server.addr(0))?;
    let began = Instant::now();
    let mut all = JoinSet::new();
    for (locks, name) in loops.iter().cloned() {
        let count = count.clone();
        all.spawn(async move {
            let lock = locks.lock(name);
            while began.elapsed() < measure {
                lock.acquire().await?.release().await?;
                count.fetch_add(1, Ordering::Relaxed);
            }
            Ok::<_, leasehold::Error>(())
        });
    }
    while let Some(done) = all.join_next().await {
        done.context("a task")??;
    }
    let (count, took) = (count.load(Ordering::Relaxed), began.elapsed());
    Ok(Done { count, took, counted: Counters::read(server.addr(0))? - before })
}

/// Returns when as many are in the queue.
async fn everybody_waits(opener: &Locks, clients: usize) -> Result<()> {
    let began = Instant::now();
    loop {
        // A server that takes in a thousand claims may be late with this answer.
        let seen = opener.inspect(LOCK).await;
        if seen.as_ref().is_ok_and(|info| info.waiters >= clients) {
            return Ok(());
        }
        ensure!(began.elapsed() < FORMS_WITHIN, "the queue did not form: {seen:?}");
        // Not so often that looking is what the server does.
        tokio::time::sleep(Duration::from_micros(200) * clients as u32).await;
    }
}

/// Everybody takes and releases the same lock until the time is over. An opener holds the one
/// until all of them are in the queue.
async fn take_turns(
    server: &Etcd,
    loops: Vec<(Locks, String)>,
    measure: Duration,
    opener: Locks,
) -> Result<Done> {
    let (turns, clients) = (Arc::new(AtomicUsize::new(0)), loops.len());
    let barrier = opener.lock(LOCK).acquire().await?;
    let over = watch::Sender::new(false);
    let mut all = JoinSet::new();
    for (locks, name) in loops {
        let (turns, mut over) = (turns.clone(), over.subscribe());
        all.spawn(async move {
            loop {
                let lock = locks.lock(&name);
                let lease = tokio::select! {
                    biased;
                    // Who is in the queue at the end has no turn any more.
                    _ = over.wait_for(|over| *over) => return Ok(()),
                    lease = lock.acquire() => lease?,
                };
                turns.fetch_add(1, Ordering::Relaxed);
                lease.release().await?;
            }
        });
    }
    everybody_waits(&opener, clients).await?;
    barrier.release().await?;
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
