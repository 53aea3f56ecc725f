//! PostgreSQL, in both modes, beside the minimal loops on the same driver and the same server.

use std::sync::Arc;

use anyhow::Result;
use leasehold::Locks;
use leasehold_faults::servers::Postgres;
use tokio::runtime::Runtime;

use crate::Plan;
use crate::pairs::{Run, run_of};
use crate::report::{Goal, Row, Table};
use crate::stats::{Latencies, Sample, Start, latencies, median};

mod advisory;
mod contended;
mod pgbench;
mod pinned;
mod rows;

const TASKS: usize = 64;
const CONTENDERS: usize = 16;
const COLUMNS: &[&str] = &["pairs/s", "us/pair", "cpu us", "p50", "p99", "to raw", "to conns"];

struct Case {
    name: &'static str,
    /// The cases it is compared with: the minimal loop, and one connection per client.
    raw: Option<&'static str>,
    connections: Option<&'static str>,
    goals: &'static [Goal],
    run: Run,
}

const RAW_ONE: &str = "raw advisory, 1 task";
const RAW_MANY: &str = "raw advisory, 64 tasks";
const RAW_BLOCKING: &str = "raw blocking, 16 clients";
const RAW_ROWS: &str = "raw rows by unnest, 64";
const RAW_CONNECTIONS: &str = "raw rows, 64 connections";

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let server = Postgres::start(&[])?;
    pinned::pin(&server)?;
    let runtime = Arc::new(plan.runtime()?);
    let mut cases = cases(&server, &runtime)?;
    // What others are compared with always runs.
    let needed: Vec<&str> = cases
        .iter()
        .filter(|case| plan.wants(case.name))
        .flat_map(|case| [Some(case.name), case.raw, case.connections])
        .flatten()
        .collect();
    cases.retain(|case| needed.contains(&case.name));
    let mut repetitions: Vec<Vec<Sample>> = Vec::new();
    for _ in 0..plan.repetitions(5) {
        let measured = cases.iter_mut().map(|case| (case.run)(plan.measure));
        repetitions.push(measured.collect::<Result<_>>()?);
    }
    let rows = (0..cases.len()).map(|index| row(&cases, index, &repetitions)).collect();
    let mut notes = vec![
        "to raw: pairs/s by those of the minimal loop of the same kind, medians of ratios.".into(),
        "raw advisory has no token. raw rows: 64 claims in a statement, fsync on.".into(),
        "to conns: by those of 64 clients with a connection each.".into(),
        "1 task counts only when server and client are pinned:".into(),
        "BENCH_SERVER_CPU=0 taskset -c 1 scripts/bench postgres --only '1 task'.".into(),
    ];
    notes.push(pgbench::note(&server, plan.measure)?);
    Ok(Table { group: "postgres", columns: COLUMNS, rows, notes })
}

fn cases(server: &Postgres, runtime: &Arc<Runtime>) -> Result<Vec<Case>> {
    let connect = |mode: &str| -> Result<Locks> {
        let url = format!("{}?sslmode=disable&mode={mode}", server.url());
        Ok(runtime.block_on(async { leasehold::connect(url).await })?)
    };
    let raw = |name, run| Case { name, raw: None, connections: None, goals: &[], run };
    let ours = |name, raw, goals, run| Case { name, raw: Some(raw), connections: None, goals, run };
    let session = connect("session")?;
    let lease = connect("lease")?;
    let contenders: Vec<Locks> =
        (0..CONTENDERS).map(|_| connect("session")).collect::<Result<_>>()?;
    let url = server.url();
    Ok(vec![
        raw(RAW_ONE, advisory::run(runtime, &url, 1)?),
        ours(
            "session, 1 task",
            RAW_ONE,
            &[Goal::AtLeast("to raw", 0.9)],
            run_of(runtime.clone(), session.clone(), 1),
        ),
        raw(RAW_MANY, advisory::run(runtime, &url, TASKS)?),
        ours(
            "session, 64 tasks",
            RAW_MANY,
            &[Goal::AtLeast("to raw", 3.0)],
            run_of(runtime.clone(), session, TASKS),
        ),
        raw(RAW_BLOCKING, contended::raw(runtime, &url, CONTENDERS)?),
        ours(
            "session, 16 clients, 1 lock",
            RAW_BLOCKING,
            &[Goal::AtLeast("to raw", 0.8)],
            contended::ours(runtime, contenders),
        ),
        raw(RAW_ROWS, rows::batched(runtime, &url, TASKS)?),
        raw(RAW_CONNECTIONS, rows::connections(runtime, &url, TASKS)?),
        Case {
            name: "lease, 64 tasks",
            raw: Some(RAW_ROWS),
            connections: Some(RAW_CONNECTIONS),
            goals: &[Goal::AtLeast("to raw", 0.8), Goal::AtLeast("to conns", 5.0)],
            run: run_of(runtime.clone(), lease.clone(), TASKS),
        },
        Case {
            name: "lease, 1 task",
            raw: None,
            connections: None,
            goals: &[],
            run: run_of(runtime.clone(), lease, 1),
        },
    ])
}

fn row(cases: &[Case], index: usize, repetitions: &[Vec<Sample>]) -> Row {
    let case = &cases[index];
    let of = |figure: &dyn Fn(&[Sample]) -> f64| {
        median(repetitions.iter().map(|samples| figure(samples)))
    };
    let ratio = |other: Option<&str>| {
        let other = other.and_then(|name| cases.iter().position(|case| case.name == name));
        other.map_or(f64::NAN, |other| {
            of(&|samples| samples[index].per_second() / samples[other].per_second())
        })
    };
    let figures = vec![
        of(&|samples| samples[index].per_second()),
        of(&|samples| 1e6 / samples[index].per_second()),
        of(&|samples| samples[index].cpu_each()),
        of(&|samples| samples[index].quantile(0.5)),
        of(&|samples| samples[index].quantile(0.99)),
        ratio(case.raw),
        ratio(case.connections),
    ];
    Row { case: case.name.to_owned(), figures, goals: case.goals.to_vec() }
}

/// Runs these tasks to their end, and brings together what they measured.
fn tasks<F>(runtime: &Runtime, tasks: Vec<F>) -> Result<Sample>
where
    F: Future<Output = Result<Latencies>> + Send + 'static,
{
    runtime.block_on(async {
        let started = Start::now();
        let running: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
        let mut all = latencies();
        for task in running {
            all.add(task.await??)?;
        }
        Ok(Sample::since(started, all))
    })
}

/// A connection of the driver's, with nothing around it.
fn connection(runtime: &Runtime, url: &str) -> Result<Arc<tokio_postgres::Client>> {
    let (client, connection) =
        runtime.block_on(tokio_postgres::connect(url, tokio_postgres::NoTls))?;
    runtime.spawn(connection);
    Ok(Arc::new(client))
}
