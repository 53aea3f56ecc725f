//! Runs histories under faults and judges them. `scripts/faults` builds and calls it.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Parser;
use leasehold_conformance::load::raise_descriptor_limit;
use leasehold_faults::crashes;
use leasehold_faults::fault_run::FaultRun;
use leasehold_faults::fault_run::deployment;
use leasehold_faults::fault_run::fault::Fault;
use leasehold_faults::fault_run::table::{Row, table};
use leasehold_faults::fault_run::workers::{self, WORKER};
use leasehold_faults::history::History;
use leasehold_faults::history::report::{Report, Verdict};

const CRASH: &str = "crash";

/// Measures what a store guarantees under faults.
#[derive(Debug, Parser)]
#[command(name = "scripts/faults")]
struct Args {
    /// The store, as `memory` or `sqlite`. Without it: all.
    store: Option<String>,
    /// The fault, as `pause` or `kill`. Without it: all that apply. `crash`, for `postgres`
    /// and `pgsession`: the server killed among 64 acquirers, no token twice.
    fault: Option<String>,
    /// How often `crash` kills the server.
    #[arg(long, default_value_t = 20)]
    times: usize,
    /// How long all faults together take.
    #[arg(long, default_value_t = 60)]
    seconds: u64,
    /// Repeats the schedule of an earlier run.
    #[arg(long)]
    seed: Option<u64>,
    /// Where the histories go. Default: a new folder in the system's temporary one.
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Judges recorded histories again instead.
    #[arg(long, value_name = "DIR")]
    check: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    raise_descriptor_limit();
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, mode, id, orders] = arguments.as_slice()
        && mode == WORKER
    {
        workers::be_worker(id, orders)?;
        return Ok(ExitCode::SUCCESS);
    }
    let args = Args::parse();
    if args.fault.as_deref() == Some(CRASH) {
        crash(&args)?;
        return Ok(ExitCode::SUCCESS);
    }
    let rows = match &args.check {
        Some(folder) => check(folder)?,
        None => run(&args)?,
    };
    print!("\n{}", table(&rows));
    let failed = rows.iter().any(|row| match row {
        Row::Ran(report) => report.verdict() != Verdict::Passed,
        Row::Not { .. } => false,
    });
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn run(args: &Args) -> Result<Vec<Row>> {
    let stores = chosen(deployment::ALL, |store| store.name(), args.store.as_deref())?;
    let faults: Vec<Fault> = chosen(&Fault::ALL, |fault| fault.name(), args.fault.as_deref())?;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let seed = args.seed.unwrap_or(wall.as_millis() as u64 % 1_000_000);
    let folder = args.folder.clone().unwrap_or_else(|| {
        std::env::temp_dir().join(format!("leasehold-faults-{}", wall.as_millis()))
    });
    let program = std::env::current_exe()?;
    let mut plan = Vec::new();
    for store in stores {
        plan.extend(faults.iter().map(|fault| (store, *fault)));
    }
    let applicable = plan.iter().filter(|(store, fault)| store.does_not_apply(*fault).is_none());
    let lasts = Duration::from_secs(args.seconds) / applicable.count().max(1) as u32;
    let mut rows = Vec::new();
    for (store, fault) in plan {
        let not =
            |why| Row::Not { store: store.name(), fault: fault.name(), row: fault.row(), why };
        if let Some(why) = store.does_not_apply(fault) {
            rows.push(not(format!("does not apply: {why}")));
            continue;
        }
        println!("{} {} for {lasts:.1?} ...", store.name(), fault.name());
        let run = FaultRun {
            store,
            fault,
            lasts,
            seed,
            folder: folder.join(format!("{}-{}", store.name(), fault.name())),
            program: &program,
            heedless: false,
        };
        rows.push(match fault.impossible(store) {
            Some(why) => not(format!("not possible here: {why}")),
            None => {
                let report = run.run().with_context(|| fault.name())?;
                print_violations(&report);
                Row::Ran(report)
            }
        });
    }
    println!("\nseed {seed}: repeat the schedule with --seed {seed} --seconds {}", args.seconds);
    println!("histories in {}: judge them again with --check", folder.display());
    Ok(rows)
}

/// Not a fault run: one process whose tasks acquire, and a server that is killed in a row.
fn crash(args: &Args) -> Result<()> {
    let modes = [("postgres", "lease"), ("pgsession", "session")];
    for (store, mode) in chosen(&modes, |(store, _)| *store, args.store.as_deref())? {
        println!("{store} {CRASH}, {} times in a row ...", args.times);
        let tokens = crashes::amid_acquirers(mode, args.times).with_context(|| store)?;
        println!("{store} {CRASH}: {tokens} tokens handed out, none twice");
    }
    Ok(())
}

fn check(folder: &Path) -> Result<Vec<Row>> {
    let mut folders = vec![folder.to_owned()];
    for entry in std::fs::read_dir(folder)? {
        folders.push(entry?.path());
    }
    folders.retain(|folder| folder.join("driver.jsonl").exists());
    folders.sort();
    if folders.is_empty() {
        bail!("there is no history in {}", folder.display());
    }
    let mut rows = Vec::new();
    for folder in folders {
        let report = Report::of(&History::read(&folder)?);
        print_violations(&report);
        rows.push(Row::Ran(report));
    }
    Ok(rows)
}

fn print_violations(report: &Report) {
    for (letter, found) in &report.violations {
        for violation in found.iter().take(10) {
            println!(
                "  {letter} violated on {} at {}: {}",
                violation.lock, violation.at, violation.what
            );
        }
        if found.len() > 10 {
            println!("  {letter}: and {} more", found.len() - 10);
        }
    }
}

fn chosen<T: Copy>(
    all: &[T],
    name: impl Fn(&T) -> &'static str,
    wanted: Option<&str>,
) -> Result<Vec<T>> {
    let found: Vec<T> =
        all.iter().filter(|one| wanted.is_none_or(|wanted| name(one) == wanted)).copied().collect();
    if found.is_empty() {
        let known: Vec<_> = all.iter().map(name).collect();
        bail!("{} is not one of {}", wanted.unwrap_or_default(), known.join(", "));
    }
    Ok(found)
}
