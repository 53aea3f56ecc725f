//! `leasehold run`: a command under a lock, from the wish to the release.

use std::env;
use std::pin::pin;

use leasehold::clock::{Alarm, Clock, Moment};
use leasehold::{ErrorKind, EventKind, Events, HeldBy, Lease, LeaseState, Locks, Scope};
use rustix::process::Signal;

use crate::child::{Change, Child};
use crate::course::{Course, Limits, Why};
use crate::exit::{Chain, Failure, LOST, REFUSED, killed_by, tell};
use crate::go::Go;
use crate::plan::Plan;
use crate::signals::Signals;
use crate::terminal::{self, Terminal};
use crate::words;

/// Runs the plan; the exit code, or why there is none of the command's own.
pub(crate) fn run(plan: Plan) -> Result<u8, Failure> {
    terminal::block_stops().map_err(|error| Failure::broken("cannot block signals", &error))?;
    // One thread: the command dies with the thread that started it, so that must be
    // the one that lives as long as the process.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Failure::broken("cannot start", &error))?;
    let ended = runtime.block_on(hold_and_run(&plan));
    runtime.shutdown_background();
    ended
}

async fn hold_and_run(plan: &Plan) -> Result<u8, Failure> {
    let mut signals = Signals::listen().map_err(|error| Failure::broken("no signals", &error))?;
    let alarm = Clock::boot().alarm().map_err(|error| Failure::broken("no timer", &error))?;
    // Before the claim, which names the command's group.
    let child = Child::prepare(&plan.command, plan.store.inherited())
        .map_err(|error| Failure::broken("cannot start a process", &error))?;
    let group = child.group().as_raw_nonzero().get().unsigned_abs();
    let client = plan.store.client(plan.label()).process_group(group);
    let locks = client.await.map_err(|error| Failure::from_library(&error, plan.held_code))?;
    if locks.guarantees().scope == Scope::Process {
        let message = "this store reaches only this process: it would keep nobody else out; \
                       for the processes of this machine use sqlite:";
        return Err(Failure::new(REFUSED, message));
    }

    let events = locks.events();
    let lease = acquire(plan, &locks, &mut signals).await?;
    let ended = match Supervisor::start(plan, &lease, child, signals, alarm, events) {
        Ok(supervisor) => supervisor.watch().await,
        Err(failure) => Err(failure),
    };
    // The reason why the command was ended says more than how the release went.
    let released = release(&locks, lease).await;
    ended.and_then(|exit_code| released.map(|()| exit_code))
}

/// Takes the lock, and says once for whom it has to wait.
async fn acquire(plan: &Plan, locks: &Locks, signals: &mut Signals) -> Result<Lease, Failure> {
    let mut events = locks.events();
    let mut told = false;
    let interrupted = {
        let lock = plan.lock(locks);
        let mut acquiring = pin!(lock.acquire());
        loop {
            tokio::select! {
                biased;
                taken = &mut acquiring => return taken.map_err(|error| match error.kind() {
                    ErrorKind::Held(by) => Failure::new(plan.held_code, held(plan, by.as_ref())),
                    _ => Failure::from_library(&error, plan.held_code),
                }),
                Some(event) = events.next(), if !told => {
                    if let EventKind::Waiting(by) = event.kind {
                        tell_waiting(plan, by.as_ref());
                        told = true;
                    }
                }
                signal = signals.next() => break signal,
            }
        }
    };
    let_background_finish(locks, plan.name.as_str()).await;
    let message = format!("gave up waiting for {:?}: interrupted by a signal", plan.name);
    Err(Failure::new(killed_by(interrupted.as_raw()), message))
}

fn tell_waiting(plan: &Plan, by: Option<&HeldBy>) {
    let (name, by) = (&plan.name, words::held_by(by));
    tell(format_args!("waiting for {name:?}, held by {by}"));
    // No error: what left the holder's group may well wait for it.
    if env::var_os("LEASEHOLD_LOCK").is_some_and(|lock| lock == name.as_str()) {
        tell(format_args!(
            "this command runs under {name:?} itself: if the holder waits for it, neither ends"
        ));
    }
}

fn held(plan: &Plan, by: Option<&HeldBy>) -> String {
    let by = words::held_by(by);
    format!("{:?} is held by {by}; use --wait to wait (longer) for it", plan.name)
}

/// Gives the lock back; an error if it turns out that it was not held to the end.
async fn release(locks: &Locks, lease: Lease) -> Result<(), Failure> {
    let name = lease.name().clone();
    let reason = match lease.state() {
        LeaseState::Lost(loss) => loss.to_string(),
        _ => "it had already gone when it was released".to_owned(),
    };
    match lease.release().await {
        Ok(()) => Ok(()),
        Err(error) if *error.kind() == ErrorKind::NotHeld => {
            let_background_finish(locks, name.as_str()).await;
            let message = format!(
                "lost {name:?} while the command ran: {reason}; \
                 what it did last may have overlapped with another holder"
            );
            Err(Failure::new(LOST, message))
        }
        Err(error) => {
            tell(format_args!("{error}; {name:?} is free at latest after its TTL"));
            Ok(())
        }
    }
}

/// The library tidies up in the background (a place in line, a lease that ended by our
/// own count); the store answers one more question after it has done that.
async fn let_background_finish(locks: &Locks, name: &str) {
    tokio::task::yield_now().await;
    let _ = locks.inspect(name).await;
}

/// The command while it runs, and what may end it.
struct Supervisor<'a> {
    lease: &'a Lease,
    limits: Limits,
    child: Child,
    signals: Signals,
    events: Events,
    alarm: Alarm,
    terminal: Option<Terminal>,
    /// The command was told to end: why, and when it must be gone.
    ending: Option<(Moment, String)>,
    /// What the store said instead of an answer, the last time.
    doubt: Option<String>,
    /// The command was stopped from the terminal, by this signal.
    stopped: Option<Signal>,
}

impl<'a> Supervisor<'a> {
    fn start(
        plan: &Plan,
        lease: &'a Lease,
        mut child: Child,
        mut signals: Signals,
        alarm: Alarm,
        events: Events,
    ) -> Result<Self, Failure> {
        let limits = Limits::new(plan, lease, Clock::boot().now());
        // While we waited, Ctrl-Z stopped us; from now on it has to stop the command first.
        signals.also(Signal::TSTP).map_err(|error| Failure::broken("no signals", &error))?;
        let mut terminal = Terminal::open();
        let interactive = terminal.as_ref().is_some_and(Terminal::is_wanted);
        child
            .start(&Go::under(lease, interactive))
            .map_err(|error| Failure::broken("the command's process is gone", &error))?;
        if let Some(terminal) = terminal.as_mut().filter(|_| interactive) {
            terminal.give(child.group());
        }
        let (ending, doubt, stopped) = (None, None, None);
        Ok(Self { lease, limits, child, signals, events, alarm, terminal, ending, doubt, stopped })
    }

    /// Watches over lease and command until nothing of the command is left.
    async fn watch(mut self) -> Result<u8, Failure> {
        let exit_code = loop {
            let next = self.steer();
            tokio::select! {
                biased;
                change = self.child.changed() => match change {
                    Change::Gone(exit_code) => break exit_code,
                    Change::Stopped(signal) => self.suspend(signal),
                },
                signal = self.signals.next() => self.child.signal(signal),
                // Proved, in doubt, lost: the course may be another one.
                Some(event) = self.events.next() => {
                    if let EventKind::Doubtful(error) = event.kind {
                        self.doubt = Some(Chain(&error).to_string());
                    }
                }
                () = self.alarm.until(next) => {}
            }
        };
        if let Some(terminal) = &mut self.terminal {
            terminal.take_back();
            if self.ending.is_some() {
                terminal.reset_modes();
            }
        }
        if self.child.has_strays() {
            tell("processes that left the command's group go on without the lock");
        }
        match self.ending {
            None => Ok(exit_code),
            Some((_, why)) => {
                let message = format!("the command was ended: {why}; it may be half done");
                Err(Failure::new(LOST, message))
            }
        }
    }

    /// Does what the lease's state asks for now, and says when to look again.
    fn steer(&mut self) -> Moment {
        let now = Clock::boot().now();
        if self.ending.is_none() {
            match self.limits.course(&self.lease.state(), self.lease.deadline(), now) {
                Course::GoOn { until } => {
                    self.resume();
                    return until;
                }
                Course::End { kill_at, why } => {
                    let why = match &self.doubt {
                        Some(cause) if why == Why::Doubt => format!("{why} ({cause})"),
                        _ => why.to_string(),
                    };
                    // Signal first, explain later: what is said may have to wait.
                    let left = now.until(kill_at);
                    if left.is_zero() {
                        self.child.signal(Signal::KILL);
                        tell(format_args!("killing the command: {why}"));
                    } else {
                        self.child.terminate();
                        tell(format_args!("ending the command within {left:.1?}: {why}"));
                    }
                    self.ending = Some((kill_at, why));
                }
            }
        }
        match self.ending {
            Some((kill_at, _)) if now < kill_at => kill_at,
            _ => {
                self.child.signal(Signal::KILL);
                Moment::NEVER
            }
        }
    }

    /// The command was stopped. If the terminal did it, we stop as well, so that the
    /// shell takes over; the lease is looked at before the command goes on.
    fn suspend(&mut self, by: Signal) {
        let Some(terminal) = &mut self.terminal else { return };
        let wants_terminal = by == Signal::TTIN || by == Signal::TTOU;
        if !wants_terminal && by != Signal::TSTP {
            return;
        }
        self.stopped = Some(by);
        if wants_terminal && terminal.is_ours() {
            return;
        }
        terminal.take_back();
        terminal.suspend();
    }

    /// Lets a command go on that was stopped from the terminal, with the terminal if we
    /// have it. One that needs it stays stopped until we do.
    fn resume(&mut self) {
        let (Some(terminal), Some(by)) = (&mut self.terminal, self.stopped) else { return };
        if terminal.is_ours() {
            terminal.give(self.child.group());
        } else if by != Signal::TSTP {
            return;
        }
        self.stopped = None;
        self.child.signal(Signal::CONT);
    }
}
