//! A course: one store, one fault, for a while; and the judgement of its history.
//!
//! * [`worker`]: what is done under the locks
//! * [`crew`]: the workers as processes or threads
//! * [`schedule`]: when which of them is struck
//! * [`table`]: what people read

use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::faults::disk::SmallDisk;
use crate::faults::freezer::Freezer;
use crate::faults::signals;
use crate::history::History;
use crate::history::event::What;
use crate::history::recorder::Recorder;
use crate::history::report::Report;
use crate::registers::Unfenced;

mod aim;
pub mod crew;
pub mod descriptors;
pub mod fault;
pub mod schedule;
mod stall;
pub mod table;
pub mod worker;

use crew::Member;
use fault::Fault;
use schedule::Strike;
use worker::Orders;

/// Room for the store and a write-ahead log of its usual size (4 MiB, until it is
/// checkpointed), in KiB: it must be the filler that fills it.
const DISK: u32 = 16 * 1024;

/// A store whose histories are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// In one process: its workers are threads.
    Memory,
    /// On one machine.
    Sqlite,
}

impl Store {
    /// All of them.
    pub const ALL: [Store; 2] = [Store::Memory, Store::Sqlite];

    /// Its name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Sqlite => "sqlite",
        }
    }
}

/// One run to be.
#[derive(Debug)]
pub struct Course<'a> {
    /// The store.
    pub store: Store,
    /// The fault.
    pub fault: Fault,
    /// For how long.
    pub lasts: Duration,
    /// What its schedule and its workers are drawn from.
    pub seed: u64,
    /// Where its history goes.
    pub folder: PathBuf,
    /// The driver, which is also the worker.
    pub program: &'a Path,
    /// With a library that does not heed deadlines, which the checkers must catch.
    pub heedless: bool,
}

impl Course<'_> {
    /// Runs and judges it.
    ///
    /// # Errors
    ///
    /// When the fault is not possible on this machine, or a worker failed.
    pub fn run(&self) -> Result<Report> {
        std::fs::create_dir_all(&self.folder)?;
        let driver = Recorder::create(&self.folder, "driver")?;
        let disk = match self.fault {
            Fault::Disk => Some(SmallDisk::mount(&self.folder.join("disk"), DISK)?),
            _ => None,
        };
        let mut scene =
            Scene { course: self, orders: self.orders(), driver, members: Vec::new(), disk };
        scene.driver.note("", self.began());
        for slot in 0..self.fault.workers() {
            let member = scene.start(slot, 0)?;
            scene.members.push(member);
        }
        let struck = scene.strike_all();
        scene.driver.note("", What::Ended);
        let ended = scene.dismiss();
        struck.and(ended)?;
        scene.note_finals()?;
        Ok(Report::of(&History::read(&self.folder)?))
    }

    fn orders(&self) -> Orders {
        let url = match self.store {
            Store::Memory => format!("memory:faults-{}", self.folder.display()),
            Store::Sqlite => match self.fault {
                Fault::Disk => format!("sqlite:{}", self.folder.join("disk/locks.db").display()),
                _ => format!("sqlite:{}", self.folder.join("locks.db").display()),
            },
        };
        Orders {
            url,
            folder: self.folder.clone(),
            locks: self.fault.locks(),
            clients: self.fault.clients(),
            ttl_ms: self.fault.ttl().as_millis() as u64,
            gap_us: self.fault.gap().as_micros() as u64,
            only_queues: self.fault.only_queues(),
            heedless: self.heedless,
            seed: self.seed,
        }
    }

    fn began(&self) -> What {
        What::Began {
            store: self.store.name().to_owned(),
            fault: self.fault.name().to_owned(),
            row: self.fault.row(),
            seed: self.seed,
            ttl_ms: self.fault.ttl().as_millis() as u64,
        }
    }
}

/// A run in progress.
struct Scene<'a> {
    course: &'a Course<'a>,
    orders: Orders,
    driver: Recorder,
    members: Vec<Running>,
    disk: Option<SmallDisk>,
}

struct Running {
    id: String,
    life: u64,
    member: Member,
    freezer: Option<Freezer>,
}

impl Scene<'_> {
    fn start(&self, slot: usize, life: u64) -> Result<Running> {
        let id = format!("{slot}.{life}");
        let seed = self.orders.seed.wrapping_add(1_000 * slot as u64 + 7_919 * life);
        let orders = Orders { seed, ..self.orders.clone() };
        let member = match self.course.store {
            Store::Memory => Member::thread(&id, orders)?,
            Store::Sqlite => Member::process(self.course.program, &id, &orders)?,
        };
        let freezer = match (self.course.fault, member.pid()) {
            (Fault::Freeze, Some(pid)) => {
                let freezer = Freezer::create()?;
                freezer.admit(pid)?;
                Some(freezer)
            }
            _ => None,
        };
        Ok(Running { id, life, member, freezer })
    }

    /// Follows the schedule.
    fn strike_all(&mut self) -> Result<()> {
        let course = self.course;
        let began = Instant::now();
        let strikes = course
            .fault
            .rhythm()
            .map(|rhythm| schedule::draw(course.seed, course.fault.slots(), course.lasts, rhythm));
        let mut acts: Vec<(Duration, bool, Strike)> = Vec::new();
        for strike in strikes.into_iter().flatten() {
            acts.push((strike.at, true, strike));
            acts.push((strike.at + strike.lasts, false, strike));
        }
        acts.sort_by_key(|(at, ..)| *at);
        for (at, begins, strike) in acts {
            thread::sleep(at.saturating_sub(began.elapsed()));
            match begins {
                true => self.inject(strike.slot)?,
                false => self.heal(strike.slot)?,
            }
        }
        thread::sleep(course.lasts.saturating_sub(began.elapsed()));
        Ok(())
    }

    fn inject(&mut self, slot: usize) -> Result<()> {
        let fault = self.course.fault;
        let target = self.target(slot);
        if fault.aims(slot) {
            aim::wait(&self.orders.folder.join(format!("{target}.jsonl")));
        }
        // Recorded before it strikes and healed after it is over: judged by the wider window.
        self.driver.note(
            "",
            What::Injected {
                fault: fault.name().to_owned(),
                target,
                pauses: fault.pauses(),
                kills: fault == Fault::Kill,
            },
        );
        match fault {
            Fault::Pause | Fault::Queue => match &mut self.members[slot].member {
                Member::Thread(thread) => thread.block(),
                member => signals::pause(member.pid().expect("a process"))?,
            },
            Fault::Freeze => self.members[slot].freezer.as_ref().expect("one each").freeze()?,
            Fault::Kill => self.members[slot].member.kill()?,
            Fault::Disk => self.disk.as_ref().expect("mounted").fill()?,
            Fault::Waiters => {}
        }
        Ok(())
    }

    fn heal(&mut self, slot: usize) -> Result<()> {
        let fault = self.course.fault;
        let target = self.target(slot);
        match fault {
            Fault::Pause | Fault::Queue => match &mut self.members[slot].member {
                Member::Thread(thread) => thread.unblock(),
                member => signals::resume(member.pid().expect("a process"))?,
            },
            Fault::Freeze => self.members[slot].freezer.as_ref().expect("one each").thaw()?,
            Fault::Kill => self.members[slot] = self.start(slot, self.members[slot].life + 1)?,
            Fault::Disk => self.disk.as_ref().expect("mounted").empty()?,
            Fault::Waiters => {}
        }
        self.driver.note("", What::Healed { fault: fault.name().to_owned(), target });
        Ok(())
    }

    fn target(&self, slot: usize) -> String {
        match self.course.fault {
            Fault::Disk => "disk".to_owned(),
            _ => self.members[slot].id.clone(),
        }
    }

    /// Ends the workers, all of them even if one failed.
    fn dismiss(&mut self) -> Result<()> {
        for running in &mut self.members {
            if let (Some(pid), Fault::Pause | Fault::Queue) =
                (running.member.pid(), self.course.fault)
            {
                // A schedule that was cut short by an error leaves some stopped.
                let _ = signals::resume(pid);
            }
            if let Some(freezer) = &running.freezer {
                freezer.thaw()?;
            }
            running.member.dismiss();
        }
        let mut ended = Ok(());
        for running in self.members.drain(..) {
            ended = ended.and(running.member.join().with_context(|| running.id));
        }
        ended
    }

    fn note_finals(&self) -> Result<()> {
        for lock in 0..self.orders.locks {
            let name = format!("lock-{lock}");
            let register = Unfenced::open(&self.orders.folder.join(format!("{name}.unfenced")))?;
            self.driver.note(&name, What::Final { value: register.read()? });
        }
        Ok(())
    }
}
