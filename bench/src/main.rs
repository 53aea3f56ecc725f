//! Benchmarks: what a lock costs, beside what it cannot be cheaper than, in one run.
//! This file reads the arguments; each group measures and fills its own table.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Result;
use clap::{Args, Parser, Subcommand, ValueEnum};
use tokio::runtime::{Builder, Runtime};

use crate::report::Format;

mod contender;
mod counting;
mod etcd;
mod handover;
mod holding;
mod pairs;
mod postgres;
mod raw;
mod redis;
mod redlock;
mod report;
mod stats;
mod usage;
mod worker;
mod zookeeper;

/// What a lock costs. Only ratios within one run count.
#[derive(Debug, Parser)]
#[command(name = "leasehold-bench", args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    bench: Bench,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Debug, Args)]
struct Bench {
    /// What to measure; without it, everything.
    group: Option<Group>,
    /// How long one repetition measures one case (`holding` has windows of its own).
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// How often everything is measured; medians count. Default: 5, `holding` 1.
    #[arg(long)]
    repetitions: Option<usize>,
    /// Measure only cases whose name contains this.
    #[arg(long, default_value = "")]
    only: String,
    /// Threads of the client, ours and the yardsticks' alike (`pairs` and `handover` have cases
    /// for both).
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..))]
    threads: u8,
    /// One JSON object per line instead of tables.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Group {
    /// Acquire + release on distinct names.
    Pairs,
    /// From one client's release to another's acquire.
    Handover,
    /// Bytes and CPU of leases that are held.
    Holding,
    /// The same three on a Redis server.
    Redis,
    /// Redlock on five nodes: pairs, beside a minimal quorum loop and rslock.
    Redlock,
    /// etcd: pairs and hand-over, beside its own driver.
    Etcd,
    /// ZooKeeper: pairs and contention, beside its driver and kazoo.
    Zookeeper,
    /// PostgreSQL, in both modes, beside the minimal loops on its driver.
    Postgres,
}

/// What this binary does when it was started by itself.
#[derive(Debug, Subcommand)]
enum Role {
    #[command(hide = true)]
    Contend(worker::Orders),
    #[command(hide = true)]
    Hold(holding::Orders),
}

/// How much to measure.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) measure: Duration,
    pub(crate) repetitions: Option<usize>,
    pub(crate) only: String,
    pub(crate) threads: u8,
}

impl Plan {
    pub(crate) fn repetitions(&self, default: usize) -> usize {
        self.repetitions.unwrap_or(default).max(1)
    }

    pub(crate) fn wants(&self, case: &str) -> bool {
        case.contains(&self.only)
    }

    /// What clients run on. One thread is a runtime without threads of its own.
    pub(crate) fn runtime(&self) -> Result<Runtime> {
        let mut builder = match self.threads {
            1 => Builder::new_current_thread(),
            threads => {
                let mut builder = Builder::new_multi_thread();
                builder.worker_threads(threads.into());
                builder
            }
        };
        Ok(builder.enable_all().build()?)
    }

    /// A place for databases. On a disk, like those of users: `/tmp` may be memory.
    pub(crate) fn directory(&self) -> Result<tempfile::TempDir> {
        let parent = std::env::var_os("BENCH_DIR").map_or_else(std::env::temp_dir, PathBuf::from);
        Ok(tempfile::Builder::new().prefix("leasehold-bench-").tempdir_in(parent)?)
    }
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    match arguments.role {
        Some(Role::Contend(orders)) => worker::contend(&orders).map(|()| ExitCode::SUCCESS),
        Some(Role::Hold(orders)) => holding::hold(&orders).map(|()| ExitCode::SUCCESS),
        None => bench(arguments.bench),
    }
}

fn bench(bench: Bench) -> Result<ExitCode> {
    let plan = Plan {
        measure: Duration::try_from_secs_f64(bench.seconds)?,
        repetitions: bench.repetitions,
        only: bench.only,
        threads: bench.threads,
    };
    let format = if bench.json { Format::Json } else { Format::Table };
    let wants = |group| bench.group.is_none_or(|wanted| wanted == group);
    let mut missed = 0;
    report::machine(format);
    if wants(Group::Pairs) {
        missed += pairs::run(&plan)?.print(format);
    }
    if wants(Group::Handover) {
        missed += handover::run(&plan)?.print(format);
    }
    if wants(Group::Holding) {
        missed += holding::run(&plan)?.print(format);
    }
    if wants(Group::Redis) {
        missed += redis::run(&plan)?.iter().map(|table| table.print(format)).sum::<usize>();
    }
    if wants(Group::Redlock) {
        missed += redlock::run(&plan)?.print(format);
    }
    if wants(Group::Etcd) {
        missed += etcd::run(&plan)?.print(format);
    }
    if wants(Group::Zookeeper) {
        missed += zookeeper::run(&plan)?.print(format);
    }
    if wants(Group::Postgres) {
        missed += postgres::run(&plan)?.print(format);
    }
    report::verdict(format, missed);
    // A missed goal is a finding, not a failure: the machine may just be busy.
    Ok(ExitCode::SUCCESS)
}
