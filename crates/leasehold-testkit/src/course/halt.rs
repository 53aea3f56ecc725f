//! Where a worker stops by itself and waits for the driver to stop its process, too: at
//! moments that are drawn in turns and steps of its own work, not by the clock. So the same seed
//! stops the same worker at the same step of the same turn again, however fast the machine.

use std::fmt;
use std::io::Write;
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use anyhow::Result;
use fastrand::Rng;
use leasehold::failpoint::Step;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use crate::history::event::What;
use crate::history::recorder::Recorder;

/// How often a worker halts, for how long, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Halts {
    /// Turns from one halt to the next, on average.
    pub every: u32,
    /// The shortest.
    pub shortest: Duration,
    /// The longest.
    pub longest: Duration,
    /// The places, each drawn with the same chance.
    pub places: Vec<Place>,
}

/// A moment in a worker's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Between the reading of the control and its writing.
    Write,
    /// Before the claim is sent.
    Asking,
    /// After the store's answer.
    Answered,
    /// In line.
    Queued,
    /// When its turn came.
    Called,
    /// When the grant was believed.
    Believed,
}

impl From<Step> for Place {
    fn from(step: Step) -> Self {
        match step {
            Step::Asking => Self::Asking,
            Step::Answered => Self::Answered,
            Step::Queued => Self::Queued,
            Step::Called => Self::Called,
            Step::Believed => Self::Believed,
        }
    }
}

/// One halt.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Halt {
    /// Where.
    pub place: Place,
    /// In which of its turns, from 1.
    pub turn: u64,
    /// For how long it wishes to be stopped.
    pub lasts: Duration,
}

/// What a worker tells its driver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// All its clients are connected.
    Ready,
    /// It halts.
    Halts(Halt),
}

/// A worker's line to its driver.
pub struct Line {
    /// Tells it something.
    pub tell: Box<dyn Fn(Said) + Send>,
    /// Hears when to go on.
    pub go: Receiver<()>,
}

impl Line {
    /// Over standard output; somebody else reads standard input.
    pub fn over_stdout(go: Receiver<()>) -> Self {
        let tell = |said| {
            let line = serde_json::to_string(&said).expect("plain data");
            let mut out = std::io::stdout();
            // Fails when the driver is gone: then `go` ends, too.
            let _ = writeln!(out, "{line}").and_then(|()| out.flush());
        };
        Self { tell: Box::new(tell), go }
    }
}

/// Knows where the worker halts next.
#[derive(Clone)]
pub struct Halter(Arc<Mutex<State>>);

struct State {
    halts: Option<Halts>,
    rng: Rng,
    recorder: Recorder,
    line: Line,
    turn: u64,
    next: Option<Halt>,
    halted_in: u64,
}

impl Halter {
    /// The halts of one worker.
    pub fn new(halts: Option<Halts>, seed: u64, recorder: Recorder, line: Line) -> Self {
        let mut rng = Rng::with_seed(seed);
        // The first one comes soon, so that short runs have some, too.
        let next = halts.as_ref().map(|halts| halts.draw(0, (halts.every / 4).max(1), &mut rng));
        let state = State { halts, rng, recorder, line, turn: 0, next, halted_in: 0 };
        Self(Arc::new(Mutex::new(state)))
    }

    /// The worker is ready to begin.
    pub fn ready(&self) {
        (self.0.lock().line.tell)(Said::Ready);
    }

    /// A turn begins.
    pub fn turn(&self) {
        self.0.lock().turn += 1;
    }

    /// Whether it halted in this turn.
    pub fn halted(&self) -> bool {
        let state = self.0.lock();
        state.halted_in == state.turn
    }

    /// Halts here if this is the place.
    pub fn reach(&self, place: Place) {
        let mut state = self.0.lock();
        let due = state.next.filter(|next| next.place == place && next.turn <= state.turn);
        let Some(next) = due else { return };
        let turn = state.turn;
        let halt = Halt { turn, ..next };
        state.halted_in = turn;
        // From here on, whatever is late is not the library's fault.
        state.recorder.note("", What::Halted { place, turn });
        (state.line.tell)(Said::Halts(halt));
        // Also when the driver is gone.
        let _ = state.line.go.recv();
        state.recorder.note("", What::Woke);
        let State { halts, rng, .. } = &mut *state;
        state.next = halts.as_ref().map(|halts| halts.draw(turn, halts.every * 2, rng));
    }
}

impl fmt::Debug for Halter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Halter").finish_non_exhaustive()
    }
}

impl fmt::Debug for Line {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Line").finish_non_exhaustive()
    }
}

impl Halts {
    /// At most `within` turns after `turn`.
    fn draw(&self, turn: u64, within: u32, rng: &mut Rng) -> Halt {
        let place = *rng.choice(&self.places).expect("some place");
        let lasts = self.shortest + (self.longest - self.shortest).mul_f64(rng.f64());
        Halt { place, turn: turn + u64::from(rng.u32(1..=within)), lasts }
    }
}

/// What a worker process says to its driver.
pub fn read(line: &str) -> Result<Said> {
    Ok(serde_json::from_str(line)?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn halts() -> Halts {
        Halts {
            every: 10,
            shortest: Duration::from_millis(1),
            longest: Duration::from_millis(9),
            places: vec![Place::Write, Place::Asking],
        }
    }

    /// All halts of two hundred turns.
    fn played(seed: u64) -> Vec<Said> {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(folder.path(), "0").unwrap();
        let (told, telling) = mpsc::channel();
        let (go, going) = mpsc::channel();
        // Go on at once.
        let tell = move |said| {
            told.send(said).unwrap();
            go.send(()).unwrap();
        };
        let line = Line { tell: Box::new(tell), go: going };
        let halter = Halter::new(Some(halts()), seed, recorder, line);
        for _ in 0..200 {
            halter.turn();
            halter.reach(Place::Asking);
            halter.reach(Place::Write);
        }
        drop(halter);
        telling.iter().collect()
    }

    #[test]
    fn a_seed_stops_at_the_same_steps_of_the_same_turns_again() {
        assert_eq!(played(7), played(7));
        assert_ne!(played(7), played(8));
        assert!(played(7).len() > 10);
    }
}
