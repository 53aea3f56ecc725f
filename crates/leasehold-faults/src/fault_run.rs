//! A fault run: one store, one fault, for a while; and the judgement of its history.
//!
//! * [`deployment`]: the store with its servers; [`fault`]: what strikes; [`plan`]: how
//! * [`worker`]: what is done under the locks
//! * [`workers`]: the workers as processes or threads
//! * [`schedule`]: when which of them is struck; [`pause_point`]: where they stop by themselves
//! * [`table`]: what people read

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use crate::faults::freezer::Freezer;
use crate::faults::signals;
use crate::history::History;
use crate::history::event::What;
use crate::history::recorder::Recorder;
use crate::history::report::Report;
use crate::registers::Unfenced;

mod agenda;
pub mod deployment;
pub mod fault;
pub mod pause_point;
pub mod plan;
mod proxies;
pub mod schedule;
mod stall;
pub mod table;
pub mod worker;
pub mod workers;

use agenda::{Act, Agenda};
use deployment::{Deployment, Store};
use fault::{Fault, Place};
use pause_point::{Pause, Said};
use plan::Plan;
use proxies::Proxies;
use schedule::Strike;
use worker::Orders;
use workers::Member;

/// How long workers may take to connect.
const GATHERING: Duration = Duration::from_secs(120);

/// One run to be.
#[derive(Debug)]
pub struct FaultRun<'a> {
    /// The store.
    pub store: &'a dyn Store,
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

impl FaultRun<'_> {
    /// Runs and judges it.
    ///
    /// # Errors
    ///
    /// When the fault is not possible on this machine, or a worker failed.
    pub fn run(&self) -> Result<Report> {
        std::fs::create_dir_all(&self.folder)?;
        let driver = Recorder::create(&self.folder, "driver")?;
        let plan = self.store.plan(self.fault);
        let deployment = self.store.set(&self.folder, self.fault)?;
        let proxies = match self.fault.place() {
            Place::Proxy => {
                Some(Proxies::open(plan.workers, &deployment.servers(), plan.gives_up)?)
            }
            _ => None,
        };
        driver.note("", self.began(&plan));
        let (members, (tells, hears)) = (Vec::new(), mpsc::channel());
        let mut scene =
            Scene { run: self, plan, driver, members, tells, hears, deployment, proxies };
        for slot in 0..scene.plan.workers {
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

    fn began(&self, plan: &Plan) -> What {
        let excused = self.store.does_not_promise(self.fault);
        What::Began {
            store: self.store.name().to_owned(),
            fault: self.fault.name().to_owned(),
            row: self.fault.row(),
            seed: self.seed,
            ttl_ms: plan.ttl.as_millis() as u64,
            failover_ms: self.store.failover().as_millis() as u64,
            heard_ms: self.store.heard_within(self.fault).as_millis() as u64,
            excused: excused.iter().map(|(letter, _)| (*letter).to_owned()).collect(),
        }
    }
}

/// A run in progress.
struct Scene<'a> {
    run: &'a FaultRun<'a>,
    plan: Plan,
    driver: Recorder,
    members: Vec<Running>,
    hears: Receiver<Told>,
    tells: Sender<Told>,
    proxies: Option<Proxies>,
    deployment: Box<dyn Deployment>,
}

/// Which worker said what.
type Told = (usize, Said);

struct Running {
    id: String,
    life: u64,
    member: Member,
    freezer: Option<Freezer>,
}

impl Scene<'_> {
    fn start(&self, slot: usize, life: u64) -> Result<Running> {
        let id = format!("{slot}.{life}");
        let orders = self.orders(slot, life);
        let tells = self.tells.clone();
        let told = move |said| {
            // Fails only when the run is over.
            let _ = tells.send((slot, said));
        };
        let member = match self.run.store.in_process() {
            true => Member::thread(&id, orders, told)?,
            false => Member::process(self.run.program, &id, &orders, told)?,
        };
        let freezer = match (self.run.fault, member.pid()) {
            (Fault::Freeze, Some(pid)) => {
                let freezer = Freezer::create()?;
                freezer.admit(pid)?;
                Some(freezer)
            }
            _ => None,
        };
        Ok(Running { id, life, member, freezer })
    }

    fn orders(&self, slot: usize, life: u64) -> Orders {
        let servers = match &self.proxies {
            Some(proxies) => proxies.of(slot),
            None => self.deployment.servers(),
        };
        let (run, plan) = (self.run, &self.plan);
        Orders {
            url: self.deployment.url(&servers),
            folder: run.folder.clone(),
            locks: plan.locks,
            clients: plan.clients,
            ttl_ms: plan.ttl.as_millis() as u64,
            gap_us: plan.gap.as_micros() as u64,
            long: if slot < plan.holders { 1_000 } else { plan.long },
            long_ms: plan.long_hold.as_millis() as u64,
            only_queues: plan.only_queues,
            pause_points: plan.pause_points.clone().filter(|_| slot + plan.pausing >= plan.workers),
            heedless: run.heedless,
            seed: run.seed.wrapping_add(1_000 * slot as u64 + 7_919 * life),
        }
    }

    /// Waits until all workers are connected: on a busy machine that can take longer than a
    /// short run. Those that are ready begin, and may pause, before the others are.
    fn gather(&mut self) -> Result<Vec<(usize, Pause)>> {
        let (mut ready, mut paused) = (0, Vec::new());
        while ready < self.plan.workers {
            match self.hears.recv_timeout(GATHERING) {
                Ok((_, Said::Ready)) => ready += 1,
                Ok((slot, Said::Pauses(pause))) => paused.push((slot, pause)),
                Err(_) => bail!("{ready} of {} workers are ready", self.plan.workers),
            }
        }
        Ok(paused)
    }

    /// Follows the schedule, and stops those that pause, until all of it is over.
    fn strike_all(&mut self) -> Result<()> {
        let paused = self.gather()?;
        let run = self.run;
        let began = Instant::now();
        let (slots, rhythm) = (self.plan.slots, self.plan.rhythm);
        let strikes = rhythm.map(|rhythm| schedule::draw(run.seed, slots, run.lasts, rhythm));
        let mut agenda = Agenda::of(strikes.into_iter().flatten());
        for (slot, pause) in paused {
            self.stop_paused(slot, &pause, began.elapsed(), &mut agenda)?;
        }
        while let Some(next) = agenda.next().or(Some(run.lasts).filter(|_| !agenda.ended)) {
            let wait = next.saturating_sub(began.elapsed());
            if let Ok((slot, said)) = self.hears.recv_timeout(wait) {
                if let Said::Pauses(pause) = said {
                    self.stop_paused(slot, &pause, began.elapsed(), &mut agenda)?;
                }
                continue;
            }
            match agenda.take(began.elapsed()) {
                Some((Act::Inject, strike)) => self.inject(&strike)?,
                Some((Act::Heal, strike)) => self.heal(&strike)?,
                None => agenda.ended = began.elapsed() >= run.lasts,
            }
        }
        Ok(())
    }

    /// A worker stands where it is to be stopped.
    fn stop_paused(
        &mut self,
        slot: usize,
        pause: &Pause,
        at: Duration,
        agenda: &mut Agenda,
    ) -> Result<()> {
        if at >= self.run.lasts {
            self.members[slot].member.go_on();
            return Ok(());
        }
        let strike = Strike { at, slot, lasts: pause.lasts, draw: 0 };
        agenda.put(Act::Heal, strike);
        self.inject(&strike)
    }

    fn inject(&mut self, strike: &Strike) -> Result<()> {
        let (fault, slot) = (self.run.fault, strike.slot);
        let target = self.target(slot);
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
        match fault.place() {
            Place::Worker => self.strike_worker(slot),
            Place::Proxy => {
                self.proxies.as_ref().expect("they are open").inject(fault, strike);
                Ok(())
            }
            Place::Deployment => self.deployment.inject(fault, strike),
        }
    }

    fn strike_worker(&mut self, slot: usize) -> Result<()> {
        let running = &mut self.members[slot];
        match self.run.fault {
            Fault::Freeze => running.freezer.as_ref().expect("one each").freeze(),
            Fault::Kill => running.member.kill(),
            _ => match &mut running.member {
                Member::Thread(thread) => {
                    thread.block();
                    Ok(())
                }
                member => Ok(signals::pause(member.pid().expect("a process"))?),
            },
        }
    }

    fn heal(&mut self, strike: &Strike) -> Result<()> {
        let (fault, slot) = (self.run.fault, strike.slot);
        let target = self.target(slot);
        match fault.place() {
            Place::Worker => self.heal_worker(slot)?,
            Place::Proxy => self.proxies.as_ref().expect("they are open").heal(strike),
            Place::Deployment => self.deployment.heal(fault, strike)?,
        }
        self.driver.note("", What::Healed { fault: fault.name().to_owned(), target });
        Ok(())
    }

    fn heal_worker(&mut self, slot: usize) -> Result<()> {
        let running = &mut self.members[slot];
        match self.run.fault {
            Fault::Freeze => running.freezer.as_ref().expect("one each").thaw()?,
            Fault::Kill => self.members[slot] = self.start(slot, self.members[slot].life + 1)?,
            _ => match &mut running.member {
                Member::Thread(thread) => thread.unblock(),
                member => signals::resume(member.pid().expect("a process"))?,
            },
        }
        self.members[slot].member.go_on();
        Ok(())
    }

    fn target(&self, slot: usize) -> String {
        match self.run.fault.place() {
            Place::Deployment => format!("{} {slot}", self.run.store.name()),
            Place::Worker | Place::Proxy => self.members[slot].id.clone(),
        }
    }

    /// Ends the workers, all of them even if one failed.
    fn dismiss(&mut self) -> Result<()> {
        for running in &mut self.members {
            if let (Some(pid), Fault::Pause | Fault::Queue) = (running.member.pid(), self.run.fault)
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
        for lock in 0..self.plan.locks {
            let name = format!("lock-{lock}");
            let register = Unfenced::open(&self.run.folder.join(format!("{name}.unfenced")))?;
            self.driver.note(&name, What::Final { value: register.read()? });
        }
        Ok(())
    }
}
