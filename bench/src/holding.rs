//! The cost of holding: memory per lease, and CPU per renewal. Every case has a
//! process of its own, so that it starts with an empty heap.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, ValueEnum};
use leasehold::backend::Backend;
use leasehold::backend::memory::MemoryStore;
use leasehold::backend::sqlite::SqliteStore;
use leasehold::clock::Clock;
use leasehold::{Lease, LeaseState, Locks};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::Plan;
use crate::counting::{Counting, Counts, Nothing};
use crate::raw;
use crate::report::{Goal, Row, Table};
use crate::stats::median;
use crate::usage;

const COLUMNS: &[&str] = &["B/lease", "B later", "us each", "% core", "batch"];
const TASKS: usize = 64;
const RAW: &str = "raw sqlite 100k";

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Store {
    /// Keeps nothing: the client alone.
    Nothing,
    Memory,
    Sqlite,
}

/// What a holder is told.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct Orders {
    store: Store,
    leases: usize,
    ttl_seconds: u64,
    /// Whether somebody reads the client's events.
    #[arg(long)]
    events: bool,
}

const fn hold_of(store: Store, leases: usize, ttl_seconds: u64) -> Orders {
    Orders { store, leases, ttl_seconds, events: false }
}

const CASES: &[Orders] = &[
    hold_of(Store::Memory, 1_000, 6),
    hold_of(Store::Memory, 10_000, 6),
    hold_of(Store::Memory, 100_000, 30),
    Orders { events: true, ..hold_of(Store::Memory, 100_000, 30) },
    hold_of(Store::Memory, 1_000_000, 30),
    hold_of(Store::Sqlite, 1_000, 6),
    hold_of(Store::Sqlite, 10_000, 6),
    hold_of(Store::Sqlite, 100_000, 30),
    hold_of(Store::Nothing, 100_000, 30),
    hold_of(Store::Nothing, 1_000_000, 30),
];

impl Orders {
    fn name(&self) -> String {
        let store = match self.store {
            Store::Nothing => "client alone",
            Store::Memory => "memory",
            Store::Sqlite => "sqlite",
        };
        let events = if self.events { ", events" } else { "" };
        format!("{store} {}k, TTL {} s{events}", self.leases / 1000, self.ttl_seconds)
    }

    fn goals(&self) -> Vec<Goal> {
        match (self.leases, self.store) {
            (..100_000, _) => Vec::new(),
            // The goal is the client's own CPU; here the database's is in the same process.
            (_, Store::Sqlite) => vec![Goal::AtMost("B later", 512.0)],
            _ => vec![Goal::AtMost("B later", 512.0), Goal::AtMost("us each", 1.5)],
        }
    }

    /// Two whole rounds of renewals, each at a third of the TTL or a little earlier.
    fn window(&self) -> Duration {
        Duration::from_secs(self.ttl_seconds) * 2 / 3
    }
}

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let cases: Vec<&Orders> = CASES.iter().filter(|orders| plan.wants(&orders.name())).collect();
    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(1) {
        let round = cases.iter().map(|orders| in_a_process(plan, orders));
        repetitions.push(round.collect::<Result<Vec<_>>>()?);
    }
    let row = |(index, orders): (usize, &&Orders)| Row {
        case: orders.name(),
        figures: (0..COLUMNS.len())
            .map(|column| median(repetitions.iter().map(|round| round[index][column])))
            .collect(),
        goals: orders.goals(),
    };
    let mut rows: Vec<Row> = cases.iter().enumerate().map(row).collect();
    if plan.wants(RAW) {
        let directory = plan.directory()?;
        let cpu = raw::renewal(&directory.path().join("raw.db"), 100_000, 500)?;
        let figures = vec![f64::NAN, f64::NAN, cpu.as_secs_f64() * 1e6, f64::NAN, 500.0];
        rows.push(Row { case: RAW.to_owned(), figures, goals: Vec::new() });
    }
    let notes = vec![
        "B/lease: growth of resident memory by acquiring them; B later: after two rounds of".into(),
        "renewal. Both with the user's guards and the store's own records (client alone: none)."
            .into(),
        "us each: CPU of the whole process, store included, per renewed lease.".into(),
    ];
    Ok(Table { group: "holding", columns: COLUMNS, rows, notes })
}

fn in_a_process(plan: &Plan, orders: &Orders) -> Result<Vec<f64>> {
    let directory = plan.directory()?;
    let store = orders.store.to_possible_value().context("a store without a name")?;
    let mut command = Command::new(std::env::current_exe()?);
    command.current_dir(directory.path());
    command.args(["hold", store.get_name(), &orders.leases.to_string()]);
    command.arg(orders.ttl_seconds.to_string());
    if orders.events {
        command.arg("--events");
    }
    let output = command.stderr(std::process::Stdio::inherit()).output()?;
    ensure!(output.status.success(), "the holder of {} failed", orders.name());
    let line = String::from_utf8(output.stdout)?;
    let figures: Vec<f64> = line.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    ensure!(figures.len() == COLUMNS.len(), "the holder said {line:?}");
    Ok(figures)
}

/// The holder's process, in a directory of its own. Prints its figures in the order
/// of [`COLUMNS`].
pub(crate) fn hold(orders: &Orders) -> Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let figures = runtime.block_on(measure(*orders))?;
    let words: Vec<String> = figures.iter().map(f64::to_string).collect();
    let mut output = std::io::stdout();
    writeln!(output, "{}", words.join(" "))?;
    output.flush()?;
    // Without giving a million leases back first: the store ends with the process.
    std::process::exit(0);
}

async fn measure(orders: Orders) -> Result<[f64; 5]> {
    let clock = Clock::boot();
    let store: Arc<dyn Backend> = match orders.store {
        Store::Nothing => Nothing::new(clock),
        Store::Memory => MemoryStore::new(clock),
        Store::Sqlite => SqliteStore::open(Path::new("locks.db"), clock)?,
    };
    let counts = Arc::<Counts>::default();
    let locks = Locks::on(Counting::new(store, counts.clone())).await?;
    // The first lease starts what all of them share.
    let first = locks.lock("first").ttl(Duration::from_secs(orders.ttl_seconds)).acquire().await?;
    if orders.events {
        let mut events = locks.events();
        tokio::spawn(async move { while events.next().await.is_some() {} });
    }

    let empty = usage::resident()?;
    let leases = acquire(&locks, orders).await?;
    let full = usage::resident()?;
    let (cpu, before) = (usage::cpu(), counts.renewals.get());
    let window = orders.window();
    tokio::time::sleep(window).await;
    let cpu = usage::cpu() - cpu;
    let after = counts.renewals.get();
    let (renewed, requests) = (after.0 - before.0, after.1 - before.1);
    let later = usage::resident()?;

    let count = |wanted: fn(&LeaseState) -> bool| {
        leases.iter().flatten().chain([&first]).filter(|lease| wanted(&lease.state())).count()
    };
    let lost = count(|state| matches!(state, LeaseState::Lost(_)));
    let doubtful = count(|state| *state == LeaseState::Doubtful);
    if lost + doubtful > 0 {
        bail!("of {} leases, {lost} are lost and {doubtful} in doubt", orders.leases);
    }
    let each = |bytes: u64| bytes.saturating_sub(empty) as f64 / orders.leases as f64;
    Ok([
        each(full),
        each(later),
        cpu.as_secs_f64() * 1e6 / renewed as f64,
        100.0 * cpu.as_secs_f64() / window.as_secs_f64(),
        renewed as f64 / requests as f64,
    ])
}

/// Many tasks, so that claims share transactions; each keeps its leases in one vector.
async fn acquire(locks: &Locks, orders: Orders) -> Result<Vec<Vec<Lease>>> {
    let mut running = JoinSet::new();
    for task in 0..TASKS {
        let locks = locks.clone();
        running.spawn(async move {
            let mine = (task..orders.leases).step_by(TASKS);
            let mut leases = Vec::with_capacity(mine.len());
            for index in mine {
                let lock = locks.lock(format!("held:{index}"));
                leases.push(lock.ttl(Duration::from_secs(orders.ttl_seconds)).acquire().await?);
            }
            anyhow::Ok(leases)
        });
    }
    let mut all = Vec::new();
    while let Some(leases) = running.join_next().await {
        all.push(leases??);
    }
    Ok(all)
}
