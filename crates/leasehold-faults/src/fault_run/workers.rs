//! The workers of a run: processes of their own, or threads where the store does not
//! reach beyond a process.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc as threads;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::process::Pid;
use tokio::sync::mpsc;

use super::pause_point::{self, Driver, Said};
use super::stall;
use super::worker::{Orders, work};
use crate::history::recorder::Recorder;

/// The hidden mode of the driver in which it is a worker.
pub const WORKER: &str = "--worker";

/// How long workers may take to finish what they are at: a thousand waiters all have their turn.
const PATIENCE: Duration = Duration::from_secs(300);

/// One worker.
#[derive(Debug)]
pub enum Member {
    /// A process, and what it hears its orders from.
    Process(Child, Option<ChildStdin>),
    /// A thread.
    Thread(Thread),
}

/// A worker thread, which can be made to block.
#[derive(Debug)]
pub struct Thread {
    handle: thread::JoinHandle<Result<()>>,
    stop: Arc<AtomicBool>,
    go: Option<threads::Sender<()>>,
    blocks: mpsc::UnboundedSender<threads::Receiver<()>>,
    blocked: Option<threads::Sender<()>>,
}

impl Member {
    /// Starts a process that works as `id`, which `told` hears from.
    pub fn process(
        program: &Path,
        id: &str,
        orders: &Orders,
        told: impl Fn(Said) + Send + 'static,
    ) -> Result<Self> {
        let orders = serde_json::to_string(orders)?;
        let mut command = Command::new(program);
        command.args([WORKER, id, &orders]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("a worker starts")?;
        let (orders, says) = (child.stdin.take(), child.stdout.take().expect("piped"));
        thread::spawn(move || {
            let lines = BufReader::new(says).lines().map_while(std::io::Result::ok);
            // What we do not understand is not for us.
            lines.filter_map(|line| pause_point::read(&line).ok()).for_each(told);
        });
        Ok(Self::Process(child, orders))
    }

    /// Starts a thread that works as `id`, which `told` hears from.
    pub fn thread(id: &str, orders: Orders, told: impl Fn(Said) + Send + 'static) -> Result<Self> {
        let recorder = Recorder::create(&orders.folder, id)?;
        let stop = Arc::new(AtomicBool::new(false));
        let (blocks, mut blocking) = mpsc::unbounded_channel::<threads::Receiver<()>>();
        let (go, going) = threads::channel();
        let driver = Driver { tell: Box::new(told), go: going };
        let stopping = stop.clone();
        let handle = thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let over = Arc::new(AtomicBool::new(false));
            let watch = stall::watch(recorder.clone(), over.clone());
            let ended = runtime.block_on(async {
                // Blocks the whole thread, with all its timers, wherever its tasks stand.
                tokio::spawn(async move {
                    while let Some(until) = blocking.recv().await {
                        let _ = until.recv();
                    }
                });
                work(orders, recorder, stopping, driver).await
            });
            over.store(true, Ordering::Relaxed);
            watch.join().expect("it does not panic");
            ended
        });
        Ok(Self::Thread(Thread { handle, stop, go: Some(go), blocks, blocked: None }))
    }

    /// Its process.
    pub fn pid(&self) -> Option<Pid> {
        match self {
            Self::Process(child, _) => Some(Pid::from_child(child)),
            Self::Thread(_) => None,
        }
    }

    /// Kills its process and waits for its end.
    pub fn kill(&mut self) -> Result<()> {
        let Self::Process(child, _) = self else { bail!("a thread cannot be killed") };
        child.kill()?;
        child.wait()?;
        Ok(())
    }

    /// Lets it go on after a pause.
    pub fn go_on(&mut self) {
        // Fails only if it is gone.
        match self {
            Self::Process(_, Some(orders)) => drop(orders.write_all(b"\n")),
            Self::Thread(Thread { go: Some(go), .. }) => drop(go.send(())),
            _ => {}
        }
    }

    /// Asks it to stop, also if it pauses just now.
    pub fn dismiss(&mut self) {
        match self {
            Self::Process(_, orders) => drop(orders.take()),
            Self::Thread(thread) => {
                thread.stop.store(true, Ordering::Relaxed);
                thread.go = None;
                thread.blocked = None;
            }
        }
    }

    /// Waits for its end.
    pub fn join(self) -> Result<()> {
        let began = Instant::now();
        match self {
            Self::Process(mut child, _) => loop {
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
        let (blocked, until) = threads::channel();
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
    let (go, going) = threads::channel();
    thread::spawn(move || {
        for _ in std::io::stdin().lines().map_while(std::io::Result::ok) {
            let _ = go.send(());
        }
        // Also closed when the driver dies: no worker is left behind.
        told.store(true, Ordering::Relaxed);
    });
    // To the very end: what is under way when the worker is told to stop is judged, too.
    let over = Arc::new(AtomicBool::new(false));
    let watch = stall::watch(recorder.clone(), over.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let ended = runtime.block_on(work(orders, recorder, stop, Driver::over_stdout(going)));
    over.store(true, Ordering::Relaxed);
    watch.join().expect("it does not panic");
    ended
}
