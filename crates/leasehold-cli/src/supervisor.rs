//! The command while it runs under its lease: what may end it, and that it ends.

use std::time::Duration;

use leasehold::clock::{Alarm, Clock, Moment};
use leasehold::{EventKind, Events, Lease};
use rustix::process::Signal;

use crate::child::{Change, Child};
use crate::exit::{Chain, Failure, LOST, tell};
use crate::plan::Plan;
use crate::signals::Signals;
use crate::start_handshake::Start;
use crate::terminal::Terminal;
use crate::termination::{Decision, Limits, Why};

/// How soon to try again to end a command that goes on.
const TRY_AGAIN: Duration = Duration::from_millis(500);

/// The command has to end.
#[derive(Debug)]
struct Ending {
    why: String,
    /// When it must be gone.
    kill_at: Moment,
    /// What goes on of it and cannot be signalled, as it was last reported.
    out_of_reach: Option<String>,
}

/// The command while it runs, and what may end it.
pub(crate) struct Supervisor<'a> {
    lease: &'a Lease,
    limits: Limits,
    child: Child,
    signals: Signals,
    events: Events,
    alarm: Alarm,
    terminal: Option<Terminal>,
    /// The command was told to end.
    ending: Option<Ending>,
    /// What the store said instead of an answer, the last time.
    doubt: Option<String>,
    /// The command was stopped from the terminal, by this signal.
    stopped: Option<Signal>,
    /// The user knows that the command cannot be signalled.
    warned: bool,
}

impl<'a> Supervisor<'a> {
    /// Lets the command begin.
    pub(crate) fn start(
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
            .start(&Start::under(lease, interactive))
            .map_err(|error| Failure::broken("the command's process is gone", &error))?;
        if let Some(terminal) = terminal.as_mut().filter(|_| interactive) {
            terminal.give(child.group());
        }
        Ok(Self {
            lease,
            limits,
            child,
            signals,
            events,
            alarm,
            terminal,
            ending: None,
            doubt: None,
            stopped: None,
            warned: false,
        })
    }

    /// Watches over lease and command until nothing of the command is left.
    pub(crate) async fn watch(mut self) -> Result<u8, Failure> {
        let exit_code = loop {
            let next = self.steer();
            tokio::select! {
                biased;
                change = self.child.changed() => match change {
                    Change::Gone(exit_code) => break exit_code,
                    Change::Stopped(signal) => self.suspend(signal),
                },
                signal = self.signals.next() => self.pass_on(signal),
                // Proved, in doubt, lost: the decision may be another one.
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
            Some(ending) => Err(Failure::new(LOST, ending.told())),
        }
    }

    /// Does what the lease's state asks for now, and says when to look again.
    fn steer(&mut self) -> Moment {
        let now = Clock::boot().now();
        if self.ending.is_none() {
            match self.limits.decide(&self.lease.state(), self.lease.deadline(), now) {
                Decision::GoOn { until } => {
                    self.resume();
                    self.warn_if_out_of_reach();
                    return until;
                }
                Decision::End { kill_at, why } => self.end(kill_at, &why, now),
            }
        }
        match &mut self.ending {
            Some(ending) if now >= ending.kill_at => {
                // Again and again: what cannot be signalled may give up its privileges.
                self.child.signal(Signal::KILL);
                ending.report(&self.child);
                now + TRY_AGAIN
            }
            Some(ending) => ending.kill_at,
            None => Moment::NEVER,
        }
    }

    /// Tells the command to end. The signal comes before the explanation.
    fn end(&mut self, kill_at: Moment, why: &Why, now: Moment) {
        let left = now.until(kill_at);
        if left.is_zero() {
            self.child.signal(Signal::KILL);
        } else {
            self.child.terminate();
        }
        let why = match &self.doubt {
            Some(cause) if *why == Why::Doubt => format!("{why} ({cause})"),
            _ => why.to_string(),
        };
        match left.is_zero() {
            true => tell(format_args!("killing the command: {why}")),
            false => tell(format_args!("ending the command within {left:.1?}: {why}")),
        }
        let mut ending = Ending { why, kill_at, out_of_reach: None };
        ending.report(&self.child);
        self.ending = Some(ending);
    }

    /// Passes a signal on to the command.
    fn pass_on(&mut self, signal: Signal) {
        if !self.child.signal(signal) {
            let number = signal.as_raw();
            tell(format_args!("cannot pass signal {number} on: the command runs as another user"));
        }
    }

    /// Says once that the command could not be ended, before it has to be.
    fn warn_if_out_of_reach(&mut self) {
        if !self.warned && self.child.is_out_of_reach() {
            self.warned = true;
            tell(
                "the command runs as another user (sudo?): leasehold cannot end it when the lease \
                 is lost; use `sudo leasehold run … -- COMMAND` instead",
            );
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

impl Ending {
    /// Says what goes on and cannot be signalled, whenever that has changed.
    fn report(&mut self, child: &Child) {
        let Some(members) = child.out_of_reach() else { return };
        if self.out_of_reach.as_ref() == Some(&members) {
            return;
        }
        tell(format_args!(
            "CANNOT END {members}: not permitted (sudo?); still running although {}; to end it by \
             hand: sudo kill -KILL -- -{}",
            self.why,
            child.group()
        ));
        self.out_of_reach = Some(members);
    }

    /// How it came out, when nothing of the command is left.
    fn told(self) -> String {
        let why = self.why;
        match self.out_of_reach {
            None => format!("the command was ended: {why}; it may be half done"),
            Some(members) => format!(
                "the command could NOT be ended: {why}; {members} ran on without the lock, \
                 perhaps beside another holder"
            ),
        }
    }
}
