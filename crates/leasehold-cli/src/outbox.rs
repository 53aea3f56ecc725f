//! The way to stderr. Its reader may stop reading (a full pipe, Ctrl-S on a terminal), and a
//! supervisor that waits for it neither renews nor signals. So lines go into a bounded queue
//! that a thread of its own writes out. Lines that do not fit are dropped, counted, and
//! reported as soon as the reader reads again.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::io::Errno;

/// How many lines may wait.
const ROOM: usize = 1024;
/// How long the end of this process waits for lines that are not written yet.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// A pause where the other side made stderr non-blocking.
const PAUSE: Duration = Duration::from_millis(10);

static OUTBOX: Outbox = Outbox { queue: Mutex::new(Queue::new()), changed: Condvar::new() };
/// Whether there is a thread that writes.
static WRITER: OnceLock<bool> = OnceLock::new();

/// What a line is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// To the user: dropped only when there are too many of them.
    Message,
    /// Of the log: dropped first.
    Log,
}

struct Outbox {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug)]
struct Queue {
    lines: VecDeque<(Line, String)>,
    dropped: usize,
    /// A line was taken and is not written yet.
    writing: bool,
}

/// Sends a line, with its newline, to stderr. Never waits for a reader.
pub(crate) fn send(kind: Line, text: String) {
    // Not earlier: a command that says nothing needs no thread. If there can be none, the
    // lines are written at the end.
    WRITER.get_or_init(|| thread::Builder::new().name("stderr".into()).spawn(write_all).is_ok());
    OUTBOX.lock().push(kind, text);
    OUTBOX.changed.notify_all();
}

/// Dropped at the end of this process, it waits for the last lines, but not for long.
#[derive(Debug)]
pub(crate) struct Flush;

impl Drop for Flush {
    fn drop(&mut self) {
        match WRITER.get() {
            Some(true) => {
                let under_way = |queue: &mut Queue| !queue.is_idle();
                let queue = OUTBOX.lock();
                drop(OUTBOX.changed.wait_timeout_while(queue, LAST_WORDS, under_way));
            }
            Some(false) => {
                let mut queue = OUTBOX.lock();
                while let Some(text) = queue.take() {
                    write(text.as_bytes());
                }
            }
            None => {}
        }
    }
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    const fn new() -> Self {
        Self { lines: VecDeque::new(), dropped: 0, writing: false }
    }

    /// Makes room by dropping the oldest log line, else the oldest line: the newest says how
    /// things are now.
    fn push(&mut self, kind: Line, text: String) {
        if self.lines.len() >= ROOM {
            let oldest = self.lines.iter().position(|(kind, _)| *kind == Line::Log);
            self.lines.remove(oldest.unwrap_or(0));
            self.dropped += 1;
        }
        self.lines.push_back((kind, text));
    }

    /// What is to be written next.
    fn take(&mut self) -> Option<String> {
        match std::mem::take(&mut self.dropped) {
            0 => self.lines.pop_front().map(|(_, text)| text),
            dropped => Some(format!(
                "leasehold: stderr was not read in time, lines that were dropped: {dropped}\n"
            )),
        }
    }

    fn is_idle(&self) -> bool {
        self.lines.is_empty() && self.dropped == 0 && !self.writing
    }
}

/// Writes what comes, for as long as this process lives.
fn write_all() {
    let mut queue = OUTBOX.lock();
    loop {
        let Some(text) = queue.take() else {
            queue = OUTBOX.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        queue.writing = true;
        drop(queue);
        write(text.as_bytes());
        queue = OUTBOX.lock();
        queue.writing = false;
        OUTBOX.changed.notify_all();
    }
}

/// Writes to the descriptor itself: the standard library's handle has a lock, on which
/// everybody else would wait.
fn write(mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(rustix::stdio::stderr(), bytes) {
            Ok(count) if count > 0 => bytes = &bytes[count..],
            Err(Errno::INTR) => {}
            // Somebody who shares it has made it non-blocking.
            Err(Errno::AGAIN) => thread::sleep(PAUSE),
            // Nobody may be listening, and that is no reason to stop.
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_lines_make_room_for_messages_and_the_gap_is_reported() {
        let mut queue = Queue::new();
        queue.push(Line::Message, "first\n".to_owned());
        for number in 0..ROOM {
            queue.push(Line::Log, format!("{number}\n"));
        }
        queue.push(Line::Message, "last\n".to_owned());
        let written: Vec<_> = std::iter::from_fn(|| queue.take()).collect();
        assert!(written[0].ends_with(" dropped: 2\n"), "{}", written[0]);
        assert_eq!(written[1..4], ["first\n", "2\n", "3\n"]);
        assert_eq!((written.len(), written[ROOM].as_str()), (ROOM + 1, "last\n"));
        assert!(queue.is_idle());
    }

    #[test]
    fn among_messages_the_newest_stay() {
        let mut queue = Queue::new();
        for number in 0..=ROOM {
            queue.push(Line::Message, format!("{number}\n"));
        }
        assert!(queue.take().is_some_and(|gap| gap.ends_with(" dropped: 1\n")));
        assert_eq!(queue.take().as_deref(), Some("1\n"));
    }
}
