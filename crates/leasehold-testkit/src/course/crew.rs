//! The workers of a run: processes of their own, or threads where the store does not
//! reach beyond a process.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;
use tokio::sync::mpsc;

use super::stall;
use super::worker::{Orders, work};
use crate::history::recorder::Recorder;

/// The hidden mode of the driver in which it is a worker.
pub const WORKER: &str = "--worker";

/// How long workers may take to finish what they are at.
const PATIENCE: Duration = Duration::from_secs(60);

/// One worker.
#[derive(Debug)]
pub enum Member {
    /// A process.
    Process(Child),
    /// A thread.
    Thread(Thread),
}

/// A worker thread, which can be made to block.
#[derive(Debug)]
pub struct Thread {
    handle: thread::JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
    blocks: mpsc::UnboundedSender<std::sync::mpsc::Receiver<()>>,
    blocked: Option<std::sync::mpsc::Sender<()>>,
}

impl Member {
    /// Starts a process that works as `id`.
    pub fn process(program: &Path, id: &str, orders: &Orders) -> Result<Self> {
        let orders = serde_json::to_string(orders)?;
        let mut command = Command::new(program);
        command.args([WORKER, id, &orders]).stdin(Stdio::piped());
        Ok(Self::Process(command.spawn().context("a worker starts")?))
    }

    /// Starts a thread that works as `id`.
    pub fn thread(id: &str, orders: Orders) -> Result<Self> {
        let recorder = Recorder::create(&orders.folder, id)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (blocks, mut blocking) = mpsc::unbounded_channel::<std::sync::mpsc::Receiver<()>>();
        let stopping = stop.clone();
        let handle = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let watch = stall::watch(recorder.clone(), stopping.clone());
            let ended = runtime.block_on(async {
                // Blocks the whole thread, with all its timers, wherever its tasks stand.
                tokio::spawn(async move {
                    while let Some(until) = blocking.recv().await {
                        let _ = until.recv();
                    }
                });
                work(orders, recorder, stopping).await
            });
            watch.join().expect("it does not panic");
            ended
        });
        Ok(Self::Thread(Thread { handle, stop, blocks, blocked: None }))
    }

    /// Its process.
    pub fn pid(&self) -> Option<Pid> {
        match self {
            Self::Process(child) => Some(Pid::from_child(child)),
            Self::Thread(_) => None,
        }
    }

    /// Kills its process and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        let Self::Process(child) = self else { bail!("a thread cannot be killed") };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Asks it to stop.
    pub fn dismiss(&mut self) {
        match self {
            Self::Process(child) => drop(child.stdin.take()),
            Self::Thread(thread) => thread.stop.store(true, Ordering::Relaxed),
        }
    }

    /// Waits for its end.
    pub fn join(self) -> Result<()> {
        let began = Instant::now();
        match self {
            Self::Process(mut child) => loop {
                if let Some(status) = child.try_wait()? {
                    ensure!(status.success(), "a worker ended with {status}");
                    return Ok(());
                }
                if began.elapsed() > PATIENCE {
                    child.kill()?;
                    child.wait()?;
                    bail!("a worker did not stop within {PATIENCE:?}");
                }
                thread::sleep(Duration::from_millis(5));
            },
            Self::Thread(thread) => thread.handle.join().expect("a worker does not panic"),
        }
    }
}

impl Thread {
    /// Keeps it from running.
    pub fn block(&mut self) {
        let (blocked, until) = std::sync::mpsc::channel();
        // Fails only if it is gone already.
        let _ = self.blocks.send(until);
        self.blocked = Some(blocked);
    }

    /// Lets it run again.
    pub fn unblock(&mut self) {
        self.blocked = None;
    }
}

/// A worker process: works until its standard input is closed.
pub fn be_worker(id: &str, orders: &str) -> Result<()> {
    let orders: Orders = serde_json::from_str(orders)?;
    let recorder = Recorder::create(&PathBuf::from(&orders.folder), id)?;
    let stop = Arc::new(AtomicBool::new(false));
    let told = stop.clone();
    thread::spawn(move || {
        // Also closed when the driver dies: no worker is left behind.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        told.store(true, Ordering::Relaxed);
    });
    let watch = stall::watch(recorder.clone(), stop.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(work(orders, recorder, stop.clone()));
    stop.store(true, Ordering::Relaxed);
    watch.join().expect("it does not panic");
    ended
}
