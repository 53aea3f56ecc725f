//! A worker: takes locks, writes to both registers under them, gives them back, and
//! records all of it. The same code runs as a process and as a thread.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use leasehold::failpoint::{Failpoints, Point};
use leasehold::{Error, EventKind, Lease, LeaseState, Lock, Locks};
use serde::{Deserialize, Serialize};

use super::pause_point::{Driver, PausePoints, Pauser, Place};
use crate::history::event::{Asked, Register, What};
use crate::history::recorder::Recorder;
use crate::registers::fenced::Written;
use crate::registers::{Fenced, Unfenced};

/// What a worker is told.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Orders {
    /// The store.
    pub url: String,
    /// Where registers and histories are.
    pub folder: std::path::PathBuf,
    /// How many locks there are.
    pub locks: usize,
    /// Clients in this process, each with a connection of its own.
    pub clients: usize,
    /// The TTL of its leases.
    pub ttl_ms: u64,
    /// Between the reading and the writing of the control, at most.
    pub gap_us: u64,
    /// Of a thousand acquisitions, how many are held for longer than the TTL.
    pub long: u32,
    /// For how long these are held.
    pub long_ms: u64,
    /// Only ever waits in the queue, so that most of its time is spent there.
    pub only_queues: bool,
    /// Where it pauses by itself.
    pub pause_points: Option<PausePoints>,
    /// Its library is wrong on purpose: it does not heed deadlines.
    pub heedless: bool,
    /// Its randomness.
    pub seed: u64,
}

/// Works until told to stop.
pub async fn work(
    orders: Orders,
    recorder: Recorder,
    stop: Arc<AtomicBool>,
    driver: Driver,
) -> Result<()> {
    recorder.note("", What::Start { pid: std::process::id() });
    let pauser = Pauser::new(orders.pause_points.clone(), orders.seed, recorder.clone(), driver);
    let mut workers = Vec::new();
    for number in 0..orders.clients {
        let recorder = match orders.clients {
            1 => recorder.clone(),
            _ => recorder.client(number),
        };
        let seed = orders.seed.wrapping_mul(1_000_003).wrapping_add(number as u64);
        let worker = Worker {
            locks: connect(&orders, &stop, &pauser).await?,
            registers: Registers::open_all(&orders.folder, orders.locks)?,
            rng: Rng::with_seed(seed),
            orders: orders.clone(),
            recorder,
            pauser: pauser.clone(),
        };
        workers.push(worker);
    }
    pauser.ready();
    let mut clients = tokio::task::JoinSet::new();
    for worker in workers {
        clients.spawn(worker.until(stop.clone()));
    }
    while let Some(ended) = clients.join_next().await {
        ended??;
    }
    recorder.note("", What::Stop);
    Ok(())
}

/// A store that is full or busy for a moment is tried again.
async fn connect(orders: &Orders, stop: &AtomicBool, pauser: &Pauser) -> Result<Locks> {
    let failpoints = Failpoints::default();
    if orders.pause_points.is_some() {
        let pauser = pauser.clone();
        failpoints.at_each_step(move |step| pauser.reach(step.into()));
    }
    if orders.heedless {
        let points = [Point::FireLoss, Point::CompareOnCall, Point::StopWorkOnLoss];
        points.into_iter().for_each(|point| failpoints.sabotage(point));
    }
    loop {
        let connect = leasehold::connect(&orders.url).failpoints(failpoints.clone());
        match connect.label("faults").await {
            Ok(locks) => return Ok(locks),
            Err(error) if stop.load(Ordering::Relaxed) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// The registers of one lock.
#[derive(Debug)]
struct Registers {
    fenced: Fenced,
    unfenced: Unfenced,
}

impl Registers {
    fn open_all(folder: &Path, locks: usize) -> Result<Vec<Self>> {
        let open = |lock| {
            let fenced = Fenced::open(&folder.join(format!("lock-{lock}.fenced")));
            let unfenced = Unfenced::open(&folder.join(format!("lock-{lock}.unfenced")));
            let registers = Self { fenced: fenced?, unfenced: unfenced? };
            std::io::Result::Ok(registers)
        };
        (0..locks).map(open).collect::<std::io::Result<_>>().context("the registers")
    }
}

/// How a lock is taken and used.
#[derive(Debug, Clone, Copy)]
enum Way {
    /// If it is free.
    Try,
    /// Waits in the queue.
    Queue,
    /// As a scope.
    Run,
    /// Held for longer than the TTL, by renewals.
    Long,
    /// Held without renewal until it is lost.
    Overstay,
}

struct Worker {
    locks: Locks,
    registers: Vec<Registers>,
    rng: Rng,
    orders: Orders,
    recorder: Recorder,
    pauser: Pauser,
}

impl Worker {
    async fn until(mut self, stop: Arc<AtomicBool>) -> Result<()> {
        while !stop.load(Ordering::Relaxed) {
            let lock = self.rng.usize(..self.orders.locks);
            let way = self.way();
            self.turn(lock, way).await?;
        }
        Ok(())
    }

    fn way(&mut self) -> Way {
        match self.rng.u32(..1_000) {
            _ if self.orders.only_queues => Way::Queue,
            drawn if drawn >= 1_000 - self.orders.long => Way::Long,
            0..2 => Way::Overstay,
            2..250 => Way::Run,
            250..450 => Way::Try,
            _ => Way::Queue,
        }
    }

    /// One acquisition, from the asking to the release.
    async fn turn(&mut self, number: usize, way: Way) -> Result<()> {
        let name = format!("lock-{number}");
        let ttl = Duration::from_millis(self.orders.ttl_ms);
        // Mostly impatient: otherwise all workers soon stand behind the one paused holder.
        let patient = self.orders.only_queues || self.rng.u32(..10) == 0;
        let patience = if patient { ttl * 50 } else { ttl / 40 };
        let lock = self.locks.lock(&name).ttl(ttl).wait(patience);
        let gap = Duration::from_micros(self.rng.u64(..=self.orders.gap_us));
        let by_hand = self.rng.u32(..20) == 0;
        let how = match way {
            Way::Queue if patient => "queue".to_owned(),
            // Refused within milliseconds where the lock is busy: that alone is no starvation.
            Way::Queue => "impatient".to_owned(),
            way => format!("{way:?}").to_lowercase(),
        };
        self.pauser.turn();
        self.recorder.note(&name, What::AcquireAsked { how });
        let hand = Hand {
            name: &name,
            recorder: &self.recorder,
            registers: &self.registers[number],
            pauser: &self.pauser,
            // A thousand clients with a reader of events each would be a gigabyte.
            locks: (self.orders.clients == 1).then_some(&self.locks),
        };
        let refused = match way {
            Way::Run => hand.run(lock, gap).await,
            Way::Try => match lock.try_acquire().await {
                Ok(Some(lease)) => hand.use_guard(lease, gap, by_hand).await,
                Ok(None) => Some("held".to_owned()),
                Err(error) => Some(error.to_string()),
            },
            Way::Queue => match lock.acquire().await {
                Ok(lease) => hand.use_guard(lease, gap, by_hand).await,
                Err(error) => Some(error.to_string()),
            },
            Way::Long => match lock.acquire().await {
                Ok(lease) => {
                    let gap = Duration::from_millis(self.orders.long_ms);
                    hand.use_guard(lease, gap, true).await
                }
                Err(error) => Some(error.to_string()),
            },
            Way::Overstay => match lock.no_renewal().acquire().await {
                Ok(lease) => hand.overstay(lease).await,
                Err(error) => Some(error.to_string()),
            },
        };
        if let Some(why) = refused {
            self.recorder.note(&name, What::AcquireFailed { why });
            tokio::time::sleep(Duration::from_micros(self.rng.u64(..1_000))).await;
        }
        Ok(())
    }
}

/// One acquisition in the hands of its worker.
struct Hand<'a> {
    name: &'a str,
    recorder: &'a Recorder,
    registers: &'a Registers,
    pauser: &'a Pauser,
    /// Whose events tell of renewals.
    locks: Option<&'a Locks>,
}

impl Hand<'_> {
    fn note(&self, what: What) {
        self.recorder.note(self.name, what);
    }

    fn note_acquired(&self, lease: &Lease) {
        let (token, deadline) = (lease.token().get(), lease.deadline().as_nanos());
        self.note(What::Acquired { token, deadline });
    }

    fn note_loss(&self, lease: &Lease) {
        let (token, deadline) = (lease.token().get(), lease.deadline().as_nanos());
        self.note(What::LossSeen { token, deadline });
    }

    /// As a careful user of a guard: a checkpoint, then the writes; nothing else stops it.
    async fn use_guard(&self, lease: Lease, gap: Duration, by_hand: bool) -> Option<String> {
        self.note_acquired(&lease);
        let token = lease.token().get();
        let step = self.step(&lease, gap, by_hand, false);
        let watch = self.watch(&lease);
        // Watched to the end, also when the loss comes first: a guard does not stop anyone.
        tokio::select! {
            biased;
            () = watch => unreachable!("watches for ever"),
            done = step => done.expect("registers work"),
        }
        self.look(&lease);
        if by_hand || self.pauser.paused() {
            // Watched as well: a store that is cut off takes its time to answer.
            tokio::select! {
                biased;
                () = self.watch(&lease) => unreachable!("watches for ever"),
                () = self.ask_again(&lease) => {}
            }
        }
        self.note(What::ReleaseAsked { token });
        match lease.release().await {
            Ok(()) => self.note(What::Released { token }),
            Err(error) => self.note(What::ReleaseFailed { token, why: error.to_string() }),
        }
        None
    }

    /// What the guard says of itself: one that slept past its deadline must know it by now.
    fn look(&self, lease: &Lease) {
        let (deadline, checked) = (lease.deadline().as_nanos(), self.recorder.now());
        match lease.state() {
            LeaseState::Lost(_) => self.note_loss(lease),
            _ => self.note_kept(lease, Asked::State, deadline, checked),
        }
    }

    /// The same by a checkpoint, and by asking the store.
    async fn ask_again(&self, lease: &Lease) {
        let (deadline, checked) = (lease.deadline().as_nanos(), self.recorder.now());
        match lease.checkpoint().await {
            Ok(_) => self.note_kept(lease, Asked::Checkpoint, deadline, checked),
            Err(_) => self.look(lease),
        }
        let (deadline, checked) = (lease.deadline().as_nanos(), self.recorder.now());
        match lease.verify().await {
            Ok(_) => self.note_kept(lease, Asked::Verify, deadline, checked),
            Err(_) => self.look(lease),
        }
    }

    /// The guard said yes. What counts is the deadline it knew when it was asked.
    fn note_kept(&self, lease: &Lease, asked: Asked, deadline: u64, checked: u64) {
        self.note(What::Kept { asked, token: lease.token().get(), deadline, checked });
    }

    /// Without renewal, until the guard says that it is over: the loss of a process that
    /// nobody paused.
    async fn overstay(&self, lease: Lease) -> Option<String> {
        self.note_acquired(&lease);
        let patience = lease.ttl() * 20;
        if tokio::time::timeout(patience, lease.lost()).await.is_ok() {
            self.note_loss(&lease);
        }
        None
    }

    /// As a scope, which stops the step by itself.
    async fn run(&self, lock: Lock, gap: Duration) -> Option<String> {
        let taken = std::sync::OnceLock::new();
        let outcome = lock
            .run(async |lease| {
                self.note_acquired(&lease);
                taken.set(lease.clone()).expect("work is started once");
                self.step(&lease, gap, false, true).await.expect("registers work");
                self.note(What::ReleaseAsked { token: lease.token().get() });
                Ok::<_, Error>(())
            })
            .await;
        match (outcome, taken.into_inner()) {
            (Ok(()), Some(lease)) => self.note(What::Released { token: lease.token().get() }),
            (Err(error), Some(lease)) if error.loss().is_some() => {
                self.note_loss(&lease);
                // The scope stopped its work; a guard that was kept must say the same.
                self.look(&lease);
                self.ask_again(&lease).await;
            }
            (Err(error), Some(lease)) => {
                let (token, why) = (lease.token().get(), error.to_string());
                self.note(What::ReleaseFailed { token, why });
            }
            (Err(error), None) => return Some(error.to_string()),
            (Ok(()), None) => unreachable!("the work ran"),
        }
        None
    }

    /// Records renewals by the keeper and the loss, when they come.
    async fn watch(&self, lease: &Lease) {
        let mut events = self.locks.map(Locks::events);
        let token = lease.token().get();
        loop {
            let next = async {
                match &mut events {
                    Some(events) => events.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = lease.lost() => break,
                event = next => {
                    let Some(event) = event else { return std::future::pending().await };
                    if event.owner == Some(lease.owner()) && matches!(event.kind, EventKind::Renewed) {
                        let deadline = lease.deadline().as_nanos();
                        self.note(What::Renewed { token, deadline });
                    }
                }
            }
        }
        self.note_loss(lease);
        std::future::pending().await
    }

    /// A checkpoint, then a write to each register. The pause that hurts comes between
    /// the reading of the control and its writing.
    async fn step(&self, lease: &Lease, gap: Duration, by_hand: bool, scope: bool) -> Result<()> {
        let token = lease.token().get();
        if by_hand {
            self.note(What::RenewAsked { token });
            match lease.renew().await {
                Ok(()) => {
                    self.note(What::Renewed { token, deadline: lease.deadline().as_nanos() });
                }
                Err(error) => self.note(What::RenewFailed { token, why: error.to_string() }),
            }
        }
        let checked = self.recorder.now();
        if lease.checkpoint().await.is_err() {
            return Ok(());
        }
        let deadline = lease.deadline().as_nanos();
        for register in [Register::Unfenced, Register::Fenced] {
            self.note(What::WriteAsked { register, token, deadline, checked });
        }
        let value = self.registers.unfenced.read()? + 1;
        for half in 0..2 {
            tokio::time::sleep(gap / 2).await;
            if scope {
                self.note(What::Polled { token, deadline: lease.deadline().as_nanos() });
            }
            if half == 0 {
                self.pauser.reach(Place::Write);
            }
        }
        self.registers.unfenced.write(value)?;
        let register = Register::Unfenced;
        self.note(What::WriteAccepted { register, token, value, number: 0 });
        let register = Register::Fenced;
        match self.registers.fenced.add(token).await? {
            Written::Accepted { value, number } => {
                self.note(What::WriteAccepted { register, token, value, number });
            }
            Written::Rejected { highest } => {
                self.note(What::WriteRejected { register, token, highest });
            }
        }
        Ok(())
    }
}
