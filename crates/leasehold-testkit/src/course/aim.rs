//! Waits for the moment in which a pause hurts most: between the reading and the writing of
//! the control.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::fault::Fault;

/// Whether a strike waits, for a moment, until its victim is between reading and writing.
pub(super) const fn aims(fault: Fault, slot: usize) -> bool {
    match fault {
        Fault::Pause | Fault::Freeze => true,
        // Any moment will do for most; some must hit for the control to show anything.
        Fault::Queue => slot.is_multiple_of(3),
        _ => false,
    }
}

/// A victim that does not get there by then is struck wherever it is.
const PATIENCE: Duration = Duration::from_millis(200);

/// Returns when the last line of a worker's history says that a write is on its way.
pub(super) fn wait(history: &Path) {
    let began = Instant::now();
    while began.elapsed() < PATIENCE && !is_writing(history).unwrap_or(false) {
        thread::sleep(Duration::from_micros(200));
    }
}

fn is_writing(history: &Path) -> std::io::Result<bool> {
    let file = File::open(history)?;
    let length = file.metadata()?.len();
    const TAIL: u64 = 400;
    let mut tail = [0; TAIL as usize];
    let read = file.read_at(&mut tail, length.saturating_sub(TAIL))?;
    let tail = String::from_utf8_lossy(&tail[..read]);
    Ok(tail.lines().last().is_some_and(|line| line.contains(r#""write_asked""#)))
}
