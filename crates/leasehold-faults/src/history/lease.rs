//! The leases of a history, put together from their events.

use std::collections::HashMap;

use super::event::{Event, What, process};

/// One acquisition as its history tells it.
#[derive(Debug, Clone)]
pub struct LeaseRecord {
    /// Who.
    pub worker: String,
    /// Which lock.
    pub lock: String,
    /// Its token.
    pub token: u64,
    /// When it was asked for.
    pub asked: u64,
    /// When the acquire returned.
    pub returned: u64,
    /// The latest deadline its holder knew.
    pub deadline: u64,
    /// When the release was asked for.
    pub released: Option<u64>,
    /// When the guard said that it was lost.
    pub loss_seen: Option<u64>,
    /// Whether the release was refused: it was not the holder's any more.
    pub refused: bool,
    /// When its process was killed.
    pub killed: Option<u64>,
    /// The last sign of life of its worker while this was its lease.
    pub last_sign: u64,
}

impl LeaseRecord {
    /// When its holder stopped being one, by its own clock.
    pub fn end(&self) -> u64 {
        let ends = [self.released, self.loss_seen, self.killed];
        ends.into_iter().flatten().fold(self.deadline, u64::min)
    }

    /// Whether the store ended it before its time, as its holder heard in the end.
    pub fn was_ended(&self) -> bool {
        self.refused || self.loss_seen.is_some_and(|at| at < self.deadline)
    }
}

/// All leases of a history, in the order in which their acquires returned.
pub fn leases(events: &[Event]) -> Vec<LeaseRecord> {
    let mut found: Vec<LeaseRecord> = Vec::new();
    let mut asked: HashMap<&str, u64> = HashMap::new();
    let mut current: HashMap<&str, usize> = HashMap::new();
    let mut killed: HashMap<&str, u64> = HashMap::new();
    for event in events {
        let worker = event.worker.as_str();
        if let Some(index) = current.get(worker) {
            found[*index].last_sign = event.at;
        }
        match &event.what {
            What::AcquireAsked { .. } => {
                asked.insert(worker, event.at);
                current.remove(worker);
            }
            What::Acquired { token, deadline } => {
                current.insert(worker, found.len());
                found.push(LeaseRecord {
                    worker: worker.to_owned(),
                    lock: event.lock.clone(),
                    token: *token,
                    asked: asked.remove(worker).unwrap_or(event.at),
                    returned: event.at,
                    deadline: *deadline,
                    released: None,
                    loss_seen: None,
                    refused: false,
                    killed: None,
                    last_sign: event.at,
                });
            }
            What::Injected { target, kills: true, .. } => {
                killed.insert(target, event.at);
            }
            what => {
                if let Some(index) = current.get(worker) {
                    found[*index].follow(event.at, what);
                }
            }
        }
    }
    for lease in &mut found {
        lease.killed = killed.get(process(&lease.worker)).copied();
    }
    found
}

impl LeaseRecord {
    fn follow(&mut self, at: u64, what: &What) {
        match what {
            What::Renewed { token, deadline }
            | What::WriteAsked { token, deadline, .. }
            | What::Kept { token, deadline, .. }
            | What::Polled { token, deadline }
                if *token == self.token =>
            {
                self.deadline = self.deadline.max(*deadline);
            }
            What::ReleaseAsked { token } if *token == self.token => {
                self.released.get_or_insert(at);
            }
            What::ReleaseFailed { token, .. } if *token == self.token => self.refused = true,
            What::LossSeen { token, deadline } if *token == self.token => {
                self.deadline = self.deadline.max(*deadline);
                self.loss_seen.get_or_insert(at);
            }
            _ => {}
        }
    }
}
