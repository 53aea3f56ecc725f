//! Notices when this process, or the thread of its runtime, was not let run by the machine, so
//! that nobody blames the library for it.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use crate::history::event::What;
use crate::history::recorder::Recorder;

const TICK: Duration = Duration::from_millis(10);
/// Later than this is worth a line: a starved thread gets its waits in many small pieces.
const LATE: Duration = Duration::from_millis(10);

/// Watches, on a thread of its own, the thread that calls this: a runtime that is blocked by the
/// library is the library's fault and not noticed; one that waits for a processor is.
pub(super) fn watch(recorder: Recorder, over: Arc<AtomicBool>) -> thread::JoinHandle<()> {
    // Of the thread that opens it, whoever reads it. Where the kernel does not count, only
    // the stalls of the watch itself are noticed.
    let schedule = File::open("/proc/thread-self/schedstat").ok();
    thread::spawn(move || {
        let (mut last, mut waited) = (recorder.now(), waited(schedule.as_ref()));
        while !over.load(Ordering::Relaxed) {
            thread::sleep(TICK);
            let (now, waits) = (recorder.now(), self::waited(schedule.as_ref()));
            let starved = waits.saturating_sub(waited);
            if now - last > (TICK + LATE).as_nanos() as u64 {
                recorder.note("", What::Stalled { since: last });
            } else if starved > LATE.as_nanos() as u64 {
                // It is counted when the wait is over, which may have begun before this tick.
                recorder.note("", What::Stalled { since: last.min(now - starved) });
            }
            (last, waited) = (now, waits);
        }
    })
}

/// How long a thread has waited for a processor so far, in nanoseconds.
fn waited(schedule: Option<&File>) -> u64 {
    let read = || {
        let mut text = [0; 64];
        let length = schedule?.read_at(&mut text, 0).ok()?;
        str::from_utf8(&text[..length]).ok()?.split(' ').nth(1)?.parse().ok()
    };
    read().unwrap_or(0)
}
