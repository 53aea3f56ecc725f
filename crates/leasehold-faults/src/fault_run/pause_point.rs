//! Where a worker stops by itself and waits for the driver to stop its process, too: not by
//! the clock, but when it comes to a certain step for the n-th time. So the same seed stops
//! the same worker at the same write, or the same wait, again, however fast the machine.

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

/// How often a worker pauses, for how long, and where.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PausePoints {
    /// The shortest.
    pub shortest: Duration,
    /// The longest.
    pub longest: Duration,
    /// The places, and how often it comes there until it pauses again, on average.
    pub places: Vec<(Place, u32)>,
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
    /// In the queue.
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

/// One pause.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Pause {
    /// Where.
    pub place: Place,
    /// Which time that it comes there, from 1.
    pub nth: u64,
    /// For how long it wishes to be stopped.
    pub lasts: Duration,
}

/// What a worker tells its driver.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Said {
    /// All its clients are connected.
    Ready,
    /// It pauses.
    Pauses(Pause),
}

/// A worker's way to its driver.
pub struct Driver {
    /// Tells it something.
    pub tell: Box<dyn Fn(Said) + Send>,
    /// Hears when to go on.
    pub go: Receiver<()>,
}

impl Driver {
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

/// Knows where the worker pauses next.
#[derive(Clone)]
pub struct Pauser(Arc<Mutex<State>>);

struct State {
    streams: Vec<Stream>,
    recorder: Recorder,
    driver: Driver,
    paused: bool,
}

/// The pauses at one place: drawn on their own, so that no other place changes them.
struct Stream {
    points: PausePoints,
    every: u32,
    rng: Rng,
    passed: u64,
    next: Pause,
}

impl Stream {
    fn new(points: &PausePoints, place: Place, every: u32, seed: u64) -> Self {
        let next = Pause { place, nth: 0, lasts: Duration::ZERO };
        let rng = Rng::with_seed(seed.wrapping_mul(31).wrapping_add(place as u64));
        let mut stream = Self { points: points.clone(), every, rng, passed: 0, next };
        // The first one comes soon, so that short runs have some, too.
        stream.draw((every / 4).max(1));
        stream
    }

    /// The next comes at most `within` passages after the last.
    fn draw(&mut self, within: u32) {
        let PausePoints { shortest, longest, .. } = self.points;
        self.next.nth += u64::from(self.rng.u32(1..=within));
        self.next.lasts = shortest + (longest - shortest).mul_f64(self.rng.f64());
    }

    /// The pause, if it is due now.
    fn pass(&mut self) -> Option<Pause> {
        self.passed += 1;
        let due = Some(self.next).filter(|next| next.nth == self.passed)?;
        self.draw(self.every * 2);
        Some(due)
    }
}

impl Pauser {
    /// The pauses of one worker.
    pub fn new(points: Option<PausePoints>, seed: u64, recorder: Recorder, driver: Driver) -> Self {
        let mut streams = Vec::new();
        if let Some(points) = &points {
            let stream = |(place, every): &(Place, u32)| Stream::new(points, *place, *every, seed);
            streams.extend(points.places.iter().map(stream));
        }
        Self(Arc::new(Mutex::new(State { streams, recorder, driver, paused: false })))
    }

    /// The worker is ready to begin.
    pub fn ready(&self) {
        (self.0.lock().driver.tell)(Said::Ready);
    }

    /// A turn begins.
    pub fn turn(&self) {
        self.0.lock().paused = false;
    }

    /// Whether it paused in this turn.
    pub fn paused(&self) -> bool {
        self.0.lock().paused
    }

    /// Pauses here if this is the place.
    pub fn reach(&self, place: Place) {
        let mut state = self.0.lock();
        let stream = state.streams.iter_mut().find(|stream| stream.next.place == place);
        let Some(pause) = stream.and_then(Stream::pass) else { return };
        state.paused = true;
        // From here on, whatever is late is not the library's fault.
        state.recorder.note("", What::Paused { place, nth: pause.nth });
        (state.driver.tell)(Said::Pauses(pause));
        // Also when the driver is gone.
        let _ = state.driver.go.recv();
        state.recorder.note("", What::Woke);
    }
}

impl fmt::Debug for Pauser {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pauser").finish_non_exhaustive()
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").finish_non_exhaustive()
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

    /// All pauses of a while in which it comes to `Write` this often for each `Asking`.
    fn played(seed: u64, writes: usize) -> Vec<Pause> {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(folder.path(), "0").unwrap();
        let (told, telling) = mpsc::channel();
        let (go, going) = mpsc::channel();
        // Go on at once.
        let tell = move |said| {
            told.send(said).unwrap();
            go.send(()).unwrap();
        };
        let points = PausePoints {
            shortest: Duration::from_millis(1),
            longest: Duration::from_millis(9),
            places: vec![(Place::Write, 10), (Place::Asking, 20)],
        };
        let driver = Driver { tell: Box::new(tell), go: going };
        let pauser = Pauser::new(Some(points), seed, recorder, driver);
        for _ in 0..400 {
            pauser.turn();
            pauser.reach(Place::Asking);
            (0..writes).for_each(|_| pauser.reach(Place::Write));
        }
        drop(pauser);
        let pause = |said| match said {
            Said::Pauses(pause) => Some(pause),
            Said::Ready => None,
        };
        telling.iter().filter_map(pause).collect()
    }

    #[test]
    fn a_seed_stops_at_the_same_steps_again() {
        assert_eq!(played(7, 1), played(7, 1));
        assert_ne!(played(7, 1), played(8, 1));
        assert!(played(7, 1).len() > 30);
    }

    #[test]
    fn what_happens_elsewhere_does_not_change_where_it_stops() {
        let asking = |mut pauses: Vec<Pause>| {
            pauses.retain(|pause| pause.place == Place::Asking);
            pauses
        };
        assert_eq!(asking(played(7, 0)), asking(played(7, 3)));
    }
}
