//! One line of a history: who, when, which lock, what.

use serde::{Deserialize, Serialize};

use crate::fault_run::pause_point::Place;

/// Something that a worker or the driver did or saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Nanoseconds since boot: all processes of one machine count the same.
    pub at: u64,
    /// `process` or `process/client`; each does one thing at a time.
    pub worker: String,
    /// The lock, or empty when it concerns none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub lock: String,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

impl Event {
    /// The process it happened in: what a signal hits.
    pub fn process(&self) -> &str {
        process(&self.worker)
    }
}

/// The process of a worker.
pub fn process(worker: &str) -> &str {
    worker.split_once('/').map_or(worker, |(process, _)| process)
}

/// What a guard was asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Asked {
    /// `state()`.
    State,
    /// `checkpoint()`.
    Checkpoint,
    /// `verify()`, which asks the store.
    Verify,
}

/// Which register was written to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Register {
    /// The one that refuses lower tokens.
    Fenced,
    /// The control, which takes everything.
    Unfenced,
}

/// What a busy machine with stopped processes may need, if its history does not say.
fn usual_failover() -> u64 {
    3_000
}

/// What happened. Requests are recorded before they are sent, answers after they came.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[allow(missing_docs, reason = "the fields mean what the vocabulary of the design says")]
pub enum What {
    /// Driver: the run and all that is needed to judge and to repeat it.
    Began {
        store: String,
        fault: String,
        row: u32,
        seed: u64,
        ttl_ms: u64,
        /// Beyond the TTL, until locks can be had again.
        #[serde(default = "usual_failover")]
        failover_ms: u64,
        /// How much later than the store its holder may hear that a lease was ended.
        #[serde(default)]
        heard_ms: u64,
        /// The letters of what this store does not promise under this fault.
        #[serde(default)]
        excused: Vec<String>,
    },
    /// Driver: workers are being told to stop.
    Ended,
    /// Driver: what the control register holds after the last worker is gone.
    Final {
        value: u64,
    },
    /// Driver: about to strike. `pauses` faults keep a process from running, `kills` end it.
    Injected {
        fault: String,
        target: String,
        pauses: bool,
        kills: bool,
    },
    /// Driver: the fault is over.
    Healed {
        fault: String,
        target: String,
    },

    /// A worker process runs.
    Start {
        pid: u32,
    },
    /// It ends as it was told to.
    Stop,
    /// Its own watch noticed that it did not run since then.
    Stalled {
        since: u64,
    },

    /// It stops by itself here, and its driver stops it for longer.
    Paused {
        place: Place,
        nth: u64,
    },
    /// It goes on after a pause.
    Woke,

    AcquireAsked {
        how: String,
    },
    Acquired {
        token: u64,
        deadline: u64,
    },
    AcquireFailed {
        why: String,
    },
    RenewAsked {
        token: u64,
    },
    /// By hand or by the keeper.
    Renewed {
        token: u64,
        deadline: u64,
    },
    RenewFailed {
        token: u64,
        why: String,
    },
    ReleaseAsked {
        token: u64,
    },
    Released {
        token: u64,
    },
    ReleaseFailed {
        token: u64,
        why: String,
    },
    /// The guard says that the lease is lost.
    LossSeen {
        token: u64,
        deadline: u64,
    },
    /// The guard said that it is not lost. `checked` is the moment just before it was asked,
    /// `deadline` the one that it knew then.
    Kept {
        asked: Asked,
        token: u64,
        deadline: u64,
        checked: u64,
    },
    /// The work of a `run()` was polled again after a wait.
    Polled {
        token: u64,
        deadline: u64,
    },

    /// `checked` is the moment just before the checkpoint that allowed the write.
    WriteAsked {
        register: Register,
        token: u64,
        deadline: u64,
        checked: u64,
    },
    /// `number` counts the accepted writes of the fenced register, in its own order.
    WriteAccepted {
        register: Register,
        token: u64,
        value: u64,
        number: u64,
    },
    WriteRejected {
        register: Register,
        token: u64,
        highest: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_read_as_it_was_written() {
        let event = Event {
            at: 7,
            worker: "3.1/4".into(),
            lock: "a".into(),
            what: What::Acquired { token: u64::MAX, deadline: 9 },
        };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event, "{line}");
        assert_eq!(event.process(), "3.1");
    }
}
