//! Notices when this process did not run, so that nobody blames the library for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::history::event::What;
use crate::history::recorder::Recorder;

const TICK: Duration = Duration::from_millis(10);
/// Later than this is worth a line.
const LATE: Duration = Duration::from_millis(30);

/// Watches on a thread of its own: a runtime that is blocked by the library is the
/// library's fault and not noticed here.
pub(super) fn watch(recorder: Recorder, stop: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        let mut last = recorder.now();
        while !stop.load(Ordering::Relaxed) {
            thread::sleep(TICK);
            let now = recorder.now();
            if now - last > (TICK + LATE).as_nanos() as u64 {
                recorder.note("", What::Stalled { since: last });
            }
            last = now;
        }
    })
}
