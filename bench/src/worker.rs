//! A worker process: contenders of its own, driven through its standard input and
//! output. It says `ready`, waits for the end of its input's first line, contends,
//! and prints a line per turn.

use std::io::{self, BufRead, BufReader, BufWriter, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Args;
use leasehold::clock::{Clock, Moment};
use tokio::runtime::Builder;
use tokio::task::JoinSet;

use crate::contender::{Rhythm, Turn, Wanted, contend as contend_alone};

/// What a worker is told.
#[derive(Debug, Clone, Args)]
pub(crate) struct Orders {
    #[arg(long)]
    pub(crate) url: String,
    /// The number of its first client.
    #[arg(long)]
    pub(crate) first: usize,
    #[arg(long)]
    pub(crate) clients: usize,
    #[arg(long)]
    pub(crate) hold_micros: u64,
    #[arg(long)]
    pub(crate) pause_micros: u64,
}

/// The worker's side. Its input's line is the moment at which to end.
pub(crate) fn contend(orders: &Orders) -> Result<()> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let mut locks = Vec::new();
        for _ in 0..orders.clients {
            locks.push(leasehold::connect(&orders.url).await?.lock("contended"));
        }
        println!("ready");
        let mut line = String::new();
        io::stdin().read_line(&mut line)?;
        let end = Moment::from_nanos(line.trim().parse()?);
        let rhythm = Rhythm {
            hold: Duration::from_micros(orders.hold_micros),
            pause: Duration::from_micros(orders.pause_micros),
        };
        let mut running = JoinSet::new();
        for (index, lock) in locks.into_iter().enumerate() {
            running.spawn(contend_alone(orders.first + index, Wanted::Lease(lock), rhythm, end));
        }
        let mut output = BufWriter::new(io::stdout().lock());
        while let Some(turns) = running.join_next().await {
            for turn in turns?? {
                writeln!(output, "{turn}")?;
            }
        }
        Ok(output.flush()?)
    })
}

/// The parent's side of a worker.
#[derive(Debug)]
struct Worker {
    process: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    fn start(orders: &Orders) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["contend", "--url", &orders.url])
            .args(["--first", &orders.first.to_string()])
            .args(["--clients", &orders.clients.to_string()])
            .args(["--hold-micros", &orders.hold_micros.to_string()])
            .args(["--pause-micros", &orders.pause_micros.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = process.stdin.take().context("a worker without input")?;
        let output = process.stdout.take().context("a worker without output")?;
        let mut worker = Self { process, input, output: BufReader::new(output).lines() };
        let said = worker.output.next().context("a worker ended before it was ready")??;
        ensure!(said == "ready", "a worker said {said:?}");
        Ok(worker)
    }

    fn turns(mut self) -> Result<Vec<Turn>> {
        let turns = self.output.by_ref().map(|line| line?.parse()).collect();
        ensure!(self.process.wait()?.success(), "a worker failed");
        turns
    }
}

/// Workers with these orders contend with each other for this long.
pub(crate) fn contend_all(orders: &[Orders], measure: Duration) -> Result<Vec<Turn>> {
    let mut workers = orders.iter().map(Worker::start).collect::<Result<Vec<_>>>()?;
    let end = Clock::boot().now() + measure;
    for worker in &mut workers {
        writeln!(worker.input, "{}", end.as_nanos())?;
    }
    let mut turns = Vec::new();
    for worker in workers {
        turns.append(&mut worker.turns()?);
    }
    Ok(turns)
}
