//! Acquire + release on distinct names: what a lock costs when nobody is in the way.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Result;
use leasehold::Locks;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;

use crate::Plan;
use crate::raw::{self, Raw};
use crate::report::{Goal, Row, Table};
use crate::stats::{Latencies, Sample, latencies, median, record};

/// Names in use, divided among the tasks: the table that SQLite searches is the same
/// size in every case.
const NAMES: usize = 1024;
/// A repetition is cut in slices that go round all cases, so that noise hits them all.
const SLICES: u32 = 4;

const COLUMNS: &[&str] = &["pairs/s", "us/pair", "p50", "p99", "to raw"];

struct Case {
    name: String,
    goals: Vec<Goal>,
    /// Whether it is compared with the raw loop.
    on_sqlite: bool,
    run: Box<dyn FnMut(Duration) -> Result<Sample>>,
}

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let directory = plan.directory()?;
    let mut cases = cases(directory.path())?;
    // The raw loop is first and always runs: it is what the others are compared with.
    let wanted = cases.iter().enumerate().map(|(i, case)| i == 0 || plan.wants(&case.name));
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
    let notes = vec![
        "to raw: pairs/s by those of the raw loop on one connection, medians of ratios.".into(),
        format!("{NAMES} names in all cases; 2 worker threads unless it says one thread."),
    ];
    Ok(Table { group: "pairs", columns: COLUMNS, rows, notes })
}

fn row(case: &Case, index: usize, repetitions: &[Vec<Sample>]) -> Row {
    let of = |figure: &dyn Fn(&[Sample]) -> f64| {
        median(repetitions.iter().map(|samples| figure(samples)))
    };
    let figures = vec![
        of(&|samples| samples[index].per_second()),
        of(&|samples| 1e6 / samples[index].per_second()),
        of(&|samples| samples[index].quantile(0.5)),
        of(&|samples| samples[index].quantile(0.99)),
        match case.on_sqlite {
            true => of(&|samples| samples[index].per_second() / samples[0].per_second()),
            false => f64::NAN,
        },
    ];
    Row { case: case.name.clone(), figures, goals: case.goals.clone() }
}

fn cases(directory: &Path) -> Result<Vec<Case>> {
    let workers = Arc::new(Builder::new_multi_thread().worker_threads(2).enable_all().build()?);
    let alone = Arc::new(Builder::new_current_thread().enable_all().build()?);
    let mut raw = Raw::open(&directory.join("raw.db"), names(0, 1))?;
    let mut crowd = (0..64)
        .map(|task| Raw::open(&directory.join("crowd.db"), names(task, 64)))
        .collect::<Result<Vec<Raw>>>()?;

    let sqlite = |file: &str| format!("sqlite:{}", directory.join(file).display());
    let case = |name: &str, goals: &[Goal], run| Case {
        name: name.to_owned(),
        goals: goals.to_vec(),
        on_sqlite: name.starts_with("sqlite") || name.starts_with("raw"),
        run,
    };
    let memory_goal = [Goal::AtMost("us/pair", 3.0)];
    let one = [Goal::AtLeast("to raw", 0.6)];
    let many = [Goal::AtLeast("to raw", 2.0)];
    let ours = |runtime: &Arc<Runtime>, url: &str, tasks, events| {
        ours(runtime.clone(), url, tasks, events)
    };
    Ok(vec![
        case("raw sqlite, 1 connection", &[], Box::new(move |measure| raw.run(measure))),
        case("sqlite, 1 task", &one, ours(&workers, &sqlite("1.db"), 1, false)?),
        case("sqlite, 1 task, one thread", &one, ours(&alone, &sqlite("1t.db"), 1, false)?),
        case("sqlite, 1 task, events read", &[], ours(&workers, &sqlite("1e.db"), 1, true)?),
        case("sqlite, 64 tasks", &many, ours(&workers, &sqlite("64.db"), 64, false)?),
        case("sqlite, 64 tasks, one thread", &[], ours(&alone, &sqlite("64t.db"), 64, false)?),
        case("sqlite, 512 tasks", &[], ours(&workers, &sqlite("512.db"), 512, false)?),
        case(
            "raw sqlite, 64 connections",
            &[],
            Box::new(move |measure| raw::run_all(&mut crowd, measure)),
        ),
        case("memory, 1 task", &memory_goal, ours(&workers, "memory:", 1, false)?),
        case("memory, 1 task, events read", &memory_goal, ours(&workers, "memory:", 1, true)?),
        case("memory, 1 task, one thread", &memory_goal, ours(&alone, "memory:", 1, false)?),
        case("memory, 1 task, one thread, events", &memory_goal, ours(&alone, "memory:", 1, true)?),
        case("memory, 64 tasks", &memory_goal, ours(&workers, "memory:", 64, false)?),
        case("memory, 64 tasks, events read", &memory_goal, ours(&workers, "memory:", 64, true)?),
        case("memory, 512 tasks", &memory_goal, ours(&workers, "memory:", 512, false)?),
        case("tokio Mutex, nobody else", &[], tokio_mutex(workers.clone())),
    ])
}

/// The names that one of several tasks goes round.
fn names(task: usize, tasks: usize) -> Vec<String> {
    (0..(NAMES / tasks).max(1)).map(|i| format!("bench:{task}:{i}")).collect()
}

/// One client, and as many tasks.
fn ours(
    runtime: Arc<Runtime>,
    url: &str,
    tasks: usize,
    events: bool,
) -> Result<Box<dyn FnMut(Duration) -> Result<Sample>>> {
    let locks = runtime.block_on(async { leasehold::connect(url).await })?;
    if events {
        let mut events = locks.events();
        runtime.spawn(async move { while events.next().await.is_some() {} });
    }
    let names: Vec<Arc<[String]>> = (0..tasks).map(|task| names(task, tasks).into()).collect();
    Ok(Box::new(move |measure| {
        runtime.block_on(async {
            let started = Instant::now();
            let end = started + measure;
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
    }))
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

fn tokio_mutex(runtime: Arc<Runtime>) -> Box<dyn FnMut(Duration) -> Result<Sample>> {
    /// A look at the clock costs more than a pair: share it among some.
    const TOGETHER: u32 = 100;
    let mutex = Arc::new(Mutex::new(0u64));
    Box::new(move |measure| {
        let mutex = mutex.clone();
        let task = async move {
            let started = Instant::now();
            let mut latencies = latencies();
            let mut before = started;
            while before < started + measure {
                for _ in 0..TOGETHER {
                    *std::hint::black_box(mutex.lock().await) += 1;
                }
                let after = Instant::now();
                let each = (after - before) / TOGETHER;
                latencies.saturating_record_n(each.as_nanos() as u64, TOGETHER);
                before = after;
            }
            Sample::since(started, latencies)
        };
        runtime.block_on(async { Ok(tokio::spawn(task).await?) })
    })
}
