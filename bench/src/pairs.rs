//! Acquire + release on distinct names: what a lock costs when nobody is in the way.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use leasehold::Locks;
use leasehold::backend::Backend;
use leasehold::backend::memory::MemoryStore;
use leasehold::backend::sqlite::SqliteStore;
use leasehold::clock::Clock;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use crate::Plan;
use crate::counting::{Counting, Counts};
use crate::raw::{self, Raw};
use crate::report::{Goal, Row, Table};
use crate::stats::{Latencies, Sample, Start, latencies, median, record};

/// Names in use, divided among the tasks: the table that SQLite searches is the same
/// size in every case.
const NAMES: usize = 1024;
/// A repetition is cut in slices that go round all cases, so that noise hits them all.
const SLICES: u32 = 4;

const COLUMNS: &[&str] = &["pairs/s", "us/pair", "cpu us", "p50", "p99", "to raw"];

/// What is measured of ours.
struct Ours {
    name: &'static str,
    store: Store,
    tasks: usize,
    /// Whether all runs on one thread instead of two.
    alone: bool,
    /// Whether somebody reads the client's events.
    events: bool,
    goals: &'static [Goal],
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Memory,
    Sqlite,
}

const fn ours(name: &'static str, store: Store, tasks: usize, goals: &'static [Goal]) -> Ours {
    Ours { name, store, tasks, alone: false, events: false, goals }
}

const MEMORY: &[Goal] = &[Goal::AtMost("us/pair", 3.0)];
const ALONE: &[Goal] = &[Goal::AtLeast("to raw", 0.6)];
const TOGETHER: &[Goal] = &[Goal::AtLeast("to raw", 2.0)];

const OURS: &[Ours] = &[
    ours("sqlite, 1 task", Store::Sqlite, 1, ALONE),
    Ours { alone: true, ..ours("sqlite, 1 task, 1 thread", Store::Sqlite, 1, ALONE) },
    Ours { events: true, ..ours("sqlite, 1 task, events", Store::Sqlite, 1, ALONE) },
    ours("sqlite, 64 tasks", Store::Sqlite, 64, TOGETHER),
    Ours { alone: true, ..ours("sqlite, 64 tasks, 1 thread", Store::Sqlite, 64, TOGETHER) },
    ours("sqlite, 512 tasks", Store::Sqlite, 512, TOGETHER),
    ours("memory, 1 task", Store::Memory, 1, MEMORY),
    Ours { events: true, ..ours("memory, 1 task, events", Store::Memory, 1, MEMORY) },
    Ours { alone: true, ..ours("memory, 1 task, 1 thread", Store::Memory, 1, MEMORY) },
    Ours {
        alone: true,
        events: true,
        ..ours("memory, 1 thread, events", Store::Memory, 1, MEMORY)
    },
    ours("memory, 64 tasks", Store::Memory, 64, MEMORY),
    Ours { events: true, ..ours("memory, 64 tasks, events", Store::Memory, 64, MEMORY) },
    ours("memory, 512 tasks", Store::Memory, 512, MEMORY),
];

struct Case {
    name: &'static str,
    goals: &'static [Goal],
    /// Whether it is compared with the raw loop.
    on_sqlite: bool,
    /// What went to the store, where that was counted.
    counts: Option<Arc<Counts>>,
    run: Run,
}

pub(crate) type Run = Box<dyn FnMut(Duration) -> Result<Sample>>;

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let directory = plan.directory()?;
    let mut cases = cases(directory.path())?;
    // The raw loop is first and always runs: it is what the others are compared with.
    let wanted = cases.iter().enumerate().map(|(i, case)| i == 0 || plan.wants(case.name));
    let mut wanted = wanted.collect::<Vec<bool>>().into_iter();
    cases.retain(|_| wanted.next().unwrap_or(false));

    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(5) {
        let mut samples: Vec<Sample> = cases.iter().map(|_| Sample::empty()).collect();
        for _ in 0..SLICES {
            for (case, sample) in cases.iter_mut().zip(&mut samples) {
                sample.extend(&(case.run)(plan.measure / SLICES)?)?;
            }
        }
        repetitions.push(samples);
    }
    let rows = cases.iter().enumerate().map(|(i, case)| row(case, i, &repetitions)).collect();
    let mut notes = vec![
        "to raw: pairs/s by those of the raw loop on one connection, medians of ratios.".into(),
        format!("{NAMES} names in all cases; 2 worker threads unless it says 1 thread."),
    ];
    let share = median(repetitions.iter().map(|samples| samples[0].share_of_a_core()));
    if share < 0.9 {
        let percent = 100.0 * share;
        notes.push(format!("The machine was busy: the raw loop got {percent:.0} % of a core."));
        notes.push(
            "Ratios of pairs/s then flatter whoever has more threads: compare cpu us.".into(),
        );
    }
    for case in &cases {
        if let Some((claims, requests)) = case.counts.as_ref().map(|counts| counts.claims.get()) {
            let each = claims as f64 / requests as f64;
            notes.push(format!("{}: {each:.1} claims in a request.", case.name));
        }
    }
    Ok(Table { group: "pairs", columns: COLUMNS, rows, notes })
}

fn row(case: &Case, index: usize, repetitions: &[Vec<Sample>]) -> Row {
    let of = |figure: &dyn Fn(&[Sample]) -> f64| {
        median(repetitions.iter().map(|samples| figure(samples)))
    };
    let figures = vec![
        of(&|samples| samples[index].per_second()),
        of(&|samples| 1e6 / samples[index].per_second()),
        of(&|samples| samples[index].cpu_each()),
        of(&|samples| samples[index].quantile(0.5)),
        of(&|samples| samples[index].quantile(0.99)),
        match case.on_sqlite {
            true => of(&|samples| samples[index].per_second() / samples[0].per_second()),
            false => f64::NAN,
        },
    ];
    Row { case: case.name.to_owned(), figures, goals: case.goals.to_vec() }
}

fn cases(directory: &Path) -> Result<Vec<Case>> {
    let workers = Arc::new(Builder::new_multi_thread().worker_threads(2).enable_all().build()?);
    let alone = Arc::new(Builder::new_current_thread().enable_all().build()?);
    let mut raw = Raw::open(&directory.join("raw.db"), names(0, 1))?;
    let mut crowd = (0..64)
        .map(|task| Raw::open(&directory.join("crowd.db"), names(task, 64)))
        .collect::<Result<Vec<Raw>>>()?;
    let yardstick = |name: &'static str, run| Case {
        name,
        goals: &[],
        on_sqlite: name.starts_with("raw"),
        counts: None,
        run,
    };
    let mut cases =
        vec![yardstick("raw sqlite, 1 connection", Box::new(move |measure| raw.run(measure)))];
    for (index, ours) in OURS.iter().enumerate() {
        let runtime = if ours.alone { &alone } else { &workers };
        cases.push(case(ours, runtime, &directory.join(format!("{index}.db")))?);
    }
    let crowd = Box::new(move |measure| raw::run_all(&mut crowd, measure));
    cases.push(yardstick("raw sqlite, 64 connections", crowd));
    cases.push(yardstick("tokio Mutex, nobody else", tokio_mutex(workers)));
    Ok(cases)
}

fn case(ours: &Ours, runtime: &Arc<Runtime>, path: &Path) -> Result<Case> {
    let counts = Arc::<Counts>::default();
    let on_sqlite = ours.store == Store::Sqlite;
    let store: Arc<dyn Backend> = match ours.store {
        Store::Memory => MemoryStore::new(Clock::boot()),
        // Counting costs a tenth of a microsecond: nothing here, something in memory.
        Store::Sqlite => Counting::new(SqliteStore::open(path, Clock::boot())?, counts.clone()),
    };
    let locks = runtime.block_on(async { Locks::on(store).await })?;
    if ours.events {
        let mut events = locks.events();
        runtime.spawn(async move { while events.next().await.is_some() {} });
    }
    let counts = on_sqlite.then_some(counts);
    let run = run_of(runtime.clone(), locks, ours.tasks);
    Ok(Case { name: ours.name, goals: ours.goals, on_sqlite, counts, run })
}

/// The names that one of several tasks goes round.
pub(crate) fn names(task: usize, tasks: usize) -> Vec<String> {
    (0..(NAMES / tasks).max(1)).map(|i| format!("bench:{task}:{i}")).collect()
}

/// One client, and as many tasks.
pub(crate) fn run_of(runtime: Arc<Runtime>, locks: Locks, tasks: usize) -> Run {
    let names: Vec<Arc<[String]>> = (0..tasks).map(|task| names(task, tasks).into()).collect();
    Box::new(move |measure| {
        runtime.block_on(async {
            let started = Start::now();
            let end = started.at + measure;
            let running: Vec<_> = names
                .iter()
                .map(|names| tokio::spawn(pairs_until(end, locks.clone(), names.clone())))
                .collect();
            let mut all = latencies();
            for task in running {
                all.add(task.await??)?;
            }
            Ok(Sample::since(started, all))
        })
    })
}

async fn pairs_until(end: Instant, locks: Locks, names: Arc<[String]>) -> Result<Latencies> {
    let mut latencies = latencies();
    let mut before = Instant::now();
    for name in names.iter().cycle() {
        if before >= end {
            break;
        }
        let lease = locks.lock(name).acquire().await?;
        lease.release().await?;
        let after = Instant::now();
        record(&mut latencies, after - before);
        before = after;
    }
    Ok(latencies)
}

fn tokio_mutex(runtime: Arc<Runtime>) -> Run {
    /// A look at the clock costs more than a pair: share it among some.
    const PAIRS: u32 = 100;
    let mutex = Arc::new(Mutex::new(0u64));
    Box::new(move |measure| {
        let mutex = mutex.clone();
        let task = async move {
            let started = Start::now();
            let mut latencies = latencies();
            let mut before = started.at;
            while before < started.at + measure {
                for _ in 0..PAIRS {
                    *std::hint::black_box(mutex.lock().await) += 1;
                }
                let after = Instant::now();
                let each = (after - before) / PAIRS;
                latencies.saturating_record_n(each.as_nanos() as u64, PAIRS);
                before = after;
            }
            Sample::since(started, latencies)
        };
        runtime.block_on(async { Ok(tokio::spawn(task).await?) })
    })
}
