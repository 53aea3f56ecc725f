//! One lock of a node: the model's, and what goes with it on a real one (times, records, who
//! waits, who has a tombstone).

use std::collections::BTreeMap;

use leasehold_models::quorum::node::Node;
use redis::cmd;

use super::names::{client, id, text};
use super::{FOREIGN, MEMORY, OPERATOR, REASON, new_node};
use crate::fixture::{Fixture, Message};

/// For how long a record is kept at least, in ms.
const RETENTION: u64 = 3_600_000;
/// For how long a queue is kept at least after somebody took a place, in ms.
const LINGER: u64 = 60_000;
/// Who was not seen for so long does not wait any more, in ms.
const PATIENCE: u64 = 3_000;

/// One lock.
#[derive(Debug)]
pub(super) struct Register {
    /// In the model.
    pub(super) node: Node<u64>,
    /// Lock, record, queue, forced.
    pub(super) keys: [String; 4],
    /// Until when the lock's key lives, in ms.
    pub(super) expires: u64,
    record: Option<Record>,
    waiters: Vec<Waiter>,
    /// Whose, and until when, in ms.
    tombstones: BTreeMap<u8, u64>,
    /// Until when the queue lives, in ms.
    queue_until: u64,
    forced: Option<Forced>,
}

#[derive(Debug)]
struct Record {
    text: String,
    channel: String,
    until: u64,
}

#[derive(Debug)]
struct Waiter {
    client: u8,
    since: u64,
    seen: u64,
    channel: String,
}

#[derive(Debug)]
struct Forced {
    token: u64,
    at: u64,
    until: u64,
}

/// What is kept of a lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Kept {
    holder: Option<(String, i64)>,
    record: Option<(String, i64)>,
    queue: BTreeMap<String, String>,
    forced: BTreeMap<String, String>,
}

impl Register {
    pub(super) fn new(key: &str) -> Self {
        let companion = |what: &str| format!("{key}:{what}");
        Self {
            node: new_node(),
            keys: [key.to_owned(), companion("record"), companion("queue"), companion("forced")],
            expires: 0,
            record: None,
            waiters: Vec::new(),
            tombstones: BTreeMap::new(),
            queue_until: 0,
            forced: None,
        }
    }

    /// All that is kept of the lock is lost.
    pub(super) fn lose(&mut self) {
        let (node, keys) = (self.node, self.keys.clone());
        *self = Self { node, keys, ..Self::new("") };
        self.node.vanish();
    }

    /// What has expired is gone; without a record, this stands for the last token. Whether the
    /// record has just expired.
    pub(super) fn expire(&mut self, millis: u64, without_record: u64) -> bool {
        if millis > self.expires {
            self.node.vanish();
        }
        let expired = self.record.as_ref().is_some_and(|record| millis > record.until);
        if expired {
            assert!(self.node.token <= without_record, "a token is forgotten that may come again");
            self.record = None;
        }
        if self.record.is_none() {
            self.node.token = without_record;
            self.node.token_owner = None;
        }
        if millis > self.queue_until {
            self.waiters.clear();
            self.tombstones.clear();
        }
        self.forced = self.forced.take().filter(|forced| millis <= forced.until);
        expired
    }

    /// The lock's key is set.
    pub(super) fn take(&mut self, owner: u8, expires: u64) {
        self.node.lock = Some(owner);
        self.expires = expires;
    }

    /// The model's last token has just been stored.
    pub(super) fn remember(&mut self, micros: u64, ttl: u64, holder: String) {
        let owner = self.node.token_owner.map_or(String::new(), owner_text);
        let token = self.node.token;
        let text = format!("{token} {micros} {owner} {holder}");
        let channel = holder.split(' ').next().unwrap_or_default().to_owned();
        let until = self.kept_until(micros, ttl);
        self.record = Some(Record { text, channel, until });
    }

    fn kept_until(&self, micros: u64, ttl: u64) -> u64 {
        let (token, millis) = (self.node.token, micros / 1000);
        let ahead = if token > micros { token as f64 / 1000.0 - millis as f64 } else { 0.0 };
        let keep = RETENTION.max(2 * ttl) as f64 + ahead;
        millis + format!("{keep:.0}").parse::<u64>().expect("it is a number")
    }

    /// The lease is renewed.
    pub(super) fn extend(&mut self, micros: u64, ttl: u64) {
        self.expires = micros / 1000 + ttl;
        let until = self.kept_until(micros, ttl);
        if let Some(record) = &mut self.record {
            record.until = until;
        }
    }

    /// Whichever attempt of this client has the lock; or one that has not.
    pub(super) fn attempt_of(&self, client: u8) -> u8 {
        let attempts = id(client, 0)..id(client + 1, 0);
        self.node.lock.filter(|owner| attempts.contains(owner)).unwrap_or(attempts.start)
    }

    /// This client asks for the lock, and waits.
    pub(super) fn wait(&mut self, client: u8, millis: u64, channel: String) {
        match self.waiters.iter_mut().find(|waiter| waiter.client == client) {
            Some(waiter) => waiter.seen = millis,
            None => {
                self.waiters.push(Waiter { client, since: millis, seen: millis, channel });
            }
        }
        self.keep_queue(millis + LINGER);
    }

    pub(super) fn wait_no_more(&mut self, client: u8) {
        self.waiters.retain(|waiter| waiter.client != client);
        if self.waiters.is_empty() && self.tombstones.is_empty() {
            self.queue_until = 0;
        }
    }

    pub(super) fn add_tombstone(&mut self, client: u8, millis: u64, lasts: u64) {
        self.tombstones.insert(client, millis + lasts);
        self.keep_queue(millis + lasts);
    }

    fn keep_queue(&mut self, until: u64) {
        self.queue_until = self.queue_until.max(until);
    }

    pub(super) fn has_tombstone(&self, client: u8, millis: u64) -> bool {
        self.tombstones.get(&client).is_some_and(|until| *until > millis)
    }

    /// The message to the one who has waited longest, of those who still do.
    pub(super) fn wake(&self, millis: u64) -> Option<Message> {
        let live = self.waiters.iter().filter(|waiter| millis - waiter.seen < PATIENCE);
        let first = live.min_by_key(|waiter| waiter.since)?;
        Some((first.channel.clone(), format!("f {}", client(first.client))))
    }

    /// It is taken from its holder: that one's token, if its record is there.
    pub(super) fn force(&mut self, millis: u64, micros: u64) -> Option<u64> {
        let ours = self.record.is_some() && self.node.token_owner == self.node.lock;
        let token = ours.then_some(self.node.token);
        let until = millis + MEMORY;
        self.forced = Some(Forced { token: token.unwrap_or(0), at: micros, until });
        token
    }

    /// By whom and why this token's lease was ended.
    pub(super) fn forced_by(&self, token: u64) -> Option<(&'static str, &'static str)> {
        self.forced.as_ref().filter(|forced| forced.token == token).map(|_| (OPERATOR, REASON))
    }

    pub(super) fn holder_text(&self) -> String {
        self.node.lock.map_or(String::new(), owner_text)
    }

    pub(super) fn record_text(&self) -> String {
        self.record.as_ref().map_or(String::new(), |record| record.text.clone())
    }

    /// Where the last holder listens.
    pub(super) fn record_channel(&self) -> String {
        self.record.as_ref().map_or(String::new(), |record| record.channel.clone())
    }

    /// What the server must keep.
    pub(super) fn kept(&self, millis: u64) -> Kept {
        let left = |until: u64| (until - millis) as i64;
        let mut queue = BTreeMap::new();
        for Waiter { client: who, since, seen, channel } in &self.waiters {
            queue.insert(format!("w{}", client(*who)), format!("{since} {seen} {channel}"));
        }
        for (who, until) in &self.tombstones {
            queue.insert(format!("b{}", client(*who)), until.to_string());
        }
        let forced = self.forced.iter().flat_map(|forced| {
            [
                ("token", forced.token.to_string()),
                ("at", forced.at.to_string()),
                ("by", OPERATOR.to_owned()),
                ("reason", REASON.to_owned()),
            ]
        });
        Kept {
            holder: self.node.lock.map(|_| (self.holder_text(), left(self.expires))),
            record: self.record.as_ref().map(|record| (record.text.clone(), left(record.until))),
            queue,
            forced: forced.map(|(field, value)| (field.to_owned(), value)).collect(),
        }
    }
}

/// What the server keeps.
pub(super) fn look(fixture: &mut Fixture, keys: &[String; 4]) -> Kept {
    let [lock, record, queue, forced] = keys;
    let mut text = |key: &String| {
        let value: Option<String> = fixture.ask(cmd("GET").arg(key));
        value.map(|value| (value, fixture.ask::<i64>(cmd("PTTL").arg(key))))
    };
    let (holder, record) = (text(lock), text(record));
    let queue = fixture.ask(cmd("HGETALL").arg(queue));
    Kept { holder, record, queue, forced: fixture.ask(cmd("HGETALL").arg(forced)) }
}

/// What an owner of the model is called.
fn owner_text(owner: u8) -> String {
    if owner == FOREIGN { text(FOREIGN, 0) } else { text(owner / 4, owner % 4) }
}
