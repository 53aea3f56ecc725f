//! Writes a history, one line per event, so that it survives `kill -9`.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;

use leasehold::clock::Clock;

use super::event::{Event, What};

/// The file of one process. Each event is one `write` to a file opened for appending:
/// what was recorded is with the kernel, whatever happens to the process.
#[derive(Debug, Clone)]
pub struct Recorder {
    file: Arc<File>,
    worker: String,
    clock: Clock,
}

impl Recorder {
    /// Records what `worker` does to `folder/worker.jsonl`.
    pub fn create(folder: &Path, worker: &str) -> io::Result<Self> {
        let path = folder.join(format!("{worker}.jsonl"));
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file: Arc::new(file), worker: worker.to_owned(), clock: Clock::boot() })
    }

    /// For one of several clients of the same process.
    pub fn client(&self, number: usize) -> Self {
        Self { worker: format!("{}/{number}", self.worker), ..self.clone() }
    }

    /// Now, as histories count it.
    pub fn now(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// Records that something happens now.
    pub fn note(&self, lock: &str, what: What) {
        let event =
            Event { at: self.now(), worker: self.worker.clone(), lock: lock.to_owned(), what };
        let mut line = serde_json::to_vec(&event).expect("events are plain data");
        line.push(b'\n');
        // A history with holes would judge wrongly: better to end this worker.
        (&*self.file).write_all(&line).expect("the history can be written");
    }
}
