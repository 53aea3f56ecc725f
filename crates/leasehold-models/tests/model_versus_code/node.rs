//! One node of a Redlock, and the node of the model `quorum`: its votes, and what makes it a
//! voter (again).
//!
//! The model has one lock; a real node has many, here two, under one marker.

mod claim;
mod marker;
mod names;
mod register;
mod steps;

use leasehold_models::quorum::node::{Answer, Node, Order, Request, Rules, Status};
use redis::{Value, cmd};

use crate::episode::{Comparison, Gap, Tally, same};
use crate::fixture::{Fixture, Message, words};
use marker::Marker;
use names::{client, holder, id, list, text};
use register::Register;
pub(crate) use steps::{Mark, Sender, Step};

/// How many seconds pass at a time.
const TICK: u64 = 2;
/// For how long an owner keeps its tombstone, in ms.
const TOMBSTONE: u64 = 7_000;
/// For how long a force-release is remembered, in ms.
const MEMORY: u64 = 60_000;
/// The hour by which a guess may be ahead of the node's clock, in µs.
const FURTHEST: u64 = 3_600_000_000;
const OPERATOR: &str = "operator";
const REASON: &str = "stuck";
/// Who is no client of ours.
const FOREIGN: u8 = 250;

/// Where a register has which key.
const LOCK: usize = 0;
const RECORD: usize = 1;
const QUEUE: usize = 2;

/// Both of them.
pub(crate) struct NodeComparison<'a> {
    fixture: &'a mut Fixture,
    rules: Rules,
    word: String,
    marker: Marker,
    locks: [Register; 2],
    tally: Tally,
}

impl<'a> NodeComparison<'a> {
    pub(crate) fn new(fixture: &'a mut Fixture, rules: Rules) -> Self {
        let locks = [Register::new(""), Register::new("")];
        let (word, marker, tally) = Default::default();
        Self { fixture, rules, word, marker, locks, tally }
    }

    fn marker_key(&self) -> String {
        format!("{}:marker", self.word)
    }

    fn channel(&self, client: u8) -> String {
        format!("{}:client{client}", self.word)
    }

    /// The node as far as it is one for all locks.
    fn node(&self) -> &Node<u64> {
        &self.locks[0].node
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        self.forget_expired();
        let mut messages = Vec::new();
        match step {
            Step::Claim { by, attempt, both, ttl, queue, guess } => {
                self.claim(by, attempt, both, ttl, queue, guess)?;
            }
            Step::Store { by, attempt, both, ttl, token } => {
                self.store(by, attempt, both, ttl, token)?;
            }
            Step::Renew { by, both, ttl, token } => self.renew(by, both, ttl, token)?,
            Step::Release { by, both, tell } => self.release(by, both, tell, &mut messages)?,
            Step::Withdraw { by, both, tombstone } => {
                self.withdraw(by, both, tombstone, &mut messages)?
            }
            Step::Force { by, lock } => self.force(by, lock, &mut messages)?,
            Step::Stand { word, list, epoch, longest, floor, keeps } => {
                self.stand(word, list, epoch, longest, floor, keeps)?;
            }
            Step::Restart { kept, keeps } => self.restart(kept, keeps),
            Step::Pass { seconds } => self.fixture.pass(seconds),
            Step::Wipe => self.wipe(),
            Step::LoseLock { lock } => {
                self.fixture.ask::<i64>(cmd("DEL").arg(&self.locks[lock].keys[0]));
                self.locks[lock].node.vanish();
            }
            Step::Foreign { lock } => {
                let mut set = cmd("SET");
                set.arg(&self.locks[lock].keys[0]).arg(text(FOREIGN, 0)).arg("PX").arg(5_000);
                self.fixture.ask::<()>(&set);
                self.locks[lock].take(FOREIGN, self.fixture.millis() + 5_000);
            }
        }
        self.forget_expired();
        same("what was published", &messages, &self.fixture.messages())?;
        self.compare()
    }

    /// What has expired by now is gone in the model, too. (Within a call as well: a token of
    /// one lock may lift what stands for the last one of another.)
    fn forget_expired(&mut self) {
        let (millis, micros) = (self.fixture.millis(), self.fixture.micros());
        for lock in &mut self.locks {
            if lock.expire(millis, self.marker.above_all_expired(micros)) {
                self.tally.note("record: expired");
            }
        }
    }

    /// What a script answers, if the node votes on this request; otherwise it must be the marker.
    fn ask(
        &mut self,
        by: Sender,
        script: &'static str,
        keys: Vec<String>,
        args: Vec<String>,
    ) -> Result<Option<Value>, String> {
        let epoch = self.epoch(by.epoch);
        let mut every_key = vec![self.marker_key()];
        every_key.extend(keys);
        let mut every_arg = vec![format!("member {} {epoch} ", list(by.list))];
        every_arg.extend(args);
        let seen = self.fixture.script(script, &every_key, &every_arg);
        // Whatever is asked, this comes first; a release of nobody's changes nothing.
        let request = Request { epoch, list: by.list, order: Order::Release { owner: u8::MAX } };
        let mut node = *self.node();
        let refused = node.step(&self.rules, request);
        if refused == Answer::No {
            return Ok(Some(seen));
        }
        self.tally.note(match refused {
            Answer::OtherEpoch(_) => "refused: other epoch",
            Answer::OtherList => "refused: other list",
            _ => "refused: no member",
        });
        same(&format!("the refusal ({refused:?})"), &self.marker_value(), &seen)?;
        Ok(None)
    }

    fn epoch(&self, offset: i8) -> u8 {
        self.node().epoch.saturating_add_signed(offset)
    }

    fn marker_value(&self) -> Value {
        Value::BulkString(self.marker.text(self.node()).into_bytes())
    }

    fn order(&mut self, by: Sender, lock: usize, order: Order<u64>) -> Answer<u64> {
        let request = Request { epoch: self.epoch(by.epoch), list: by.list, order };
        let answer = self.locks[lock].node.step(&self.rules, request);
        let what = match order {
            Order::Claim { .. } => "claim",
            Order::Store { .. } => "store",
            Order::Renew { .. } => "renew",
            _ => "release",
        };
        let came = match answer {
            Answer::Granted { stored: true, .. } => "granted with its guess",
            Answer::Granted { .. } => "granted",
            Answer::Held { .. } => "held",
            Answer::Yes => "yes",
            _ => "no",
        };
        self.tally.note(format!("{what}: {came}"));
        answer
    }

    /// First all keys of the one kind, then all of the next.
    fn keys_by_kind(&self, both: bool, kinds: &[usize]) -> Vec<String> {
        let key = |at: usize, kind: usize| self.locks[at].keys[kind].clone();
        kinds.iter().flat_map(|kind| locks(both).map(move |at| key(at, *kind))).collect()
    }

    fn store(
        &mut self,
        by: Sender,
        attempt: u8,
        both: bool,
        ttl: u64,
        token: Mark,
    ) -> Result<(), String> {
        let (owner, channel) = (text(by.client, attempt), self.channel(by.client));
        let mut args = vec![format!("{channel} {}", holder(by.client))];
        let mut keys = Vec::new();
        let tokens: Vec<u64> = locks(both).map(|at| self.resolve(Some(token), at)).collect();
        for (at, token) in locks(both).zip(&tokens) {
            keys.extend_from_slice(&self.locks[at].keys[..2]);
            args.extend(words([&owner, token, &ttl]));
        }
        let Some(seen) = self.ask(by, "STORE", keys, args)? else { return Ok(()) };
        let micros = self.fixture.micros();
        let mut expected = Vec::new();
        for (at, token) in locks(both).zip(tokens) {
            self.forget_expired();
            let before = self.locks[at].node;
            let owner = id(by.client, attempt);
            let answer = self.order(by, at, Order::Store { owner, token });
            let lock = &mut self.locks[at];
            if lock.node.token != before.token {
                self.marker.raise(ttl, token);
                lock.remember(micros, ttl, format!("{channel} {}", holder(by.client)));
            }
            expected.push(Value::Int((answer == Answer::Yes).into()));
        }
        same("the answer to the token", &Value::Array(expected), &seen)
    }

    fn renew(&mut self, by: Sender, both: bool, ttl: u64, token: Mark) -> Result<(), String> {
        let mut args = Vec::new();
        let mut keys = Vec::new();
        let tokens: Vec<u64> = locks(both).map(|at| self.resolve(Some(token), at)).collect();
        for (at, token) in locks(both).zip(&tokens) {
            let [lock, record, _, forced] = self.locks[at].keys.clone();
            keys.extend([lock, record, forced]);
            args.extend(words([&client(by.client), token, &ttl]));
        }
        let Some(seen) = self.ask(by, "RENEW", keys, args)? else { return Ok(()) };
        let micros = self.fixture.micros();
        let mut expected = Vec::new();
        for (at, token) in locks(both).zip(tokens) {
            // The owner is the client's, whichever attempt of it has the lock.
            let owner = self.locks[at].attempt_of(by.client);
            let answer = self.order(by, at, Order::Renew { owner, token });
            let lock = &mut self.locks[at];
            expected.push(match lock.forced_by(token) {
                _ if answer == Answer::Yes => {
                    self.marker.raise(ttl, 0);
                    lock.extend(micros, ttl);
                    Value::Int(1)
                }
                Some((by, why)) => {
                    Value::Array(vec![Value::BulkString(by.into()), Value::BulkString(why.into())])
                }
                None => Value::Int(if lock.node.lock.is_some() { 2 } else { 0 }),
            });
        }
        same("the answer to the renewal", &Value::Array(expected), &seen)
    }

    fn release(
        &mut self,
        by: Sender,
        both: bool,
        tell: bool,
        messages: &mut Vec<Message>,
    ) -> Result<(), String> {
        let mut args = words([&u8::from(tell)]);
        let keys = self.keys_by_kind(both, &[LOCK, QUEUE]);
        args.extend(locks(both).map(|_| client(by.client)));
        let Some(seen) = self.ask(by, "RELEASE", keys, args)? else { return Ok(()) };
        let mut expected = Vec::new();
        for at in locks(both) {
            let owner = self.locks[at].attempt_of(by.client);
            let answer = self.order(by, at, Order::Release { owner });
            if answer == Answer::Yes && tell {
                messages.extend(self.locks[at].wake(self.fixture.millis()));
            }
            expected.push(Value::Int((answer == Answer::Yes).into()));
        }
        same("the answer to the release", &in_short(Value::Array(expected)), &in_short(seen))
    }

    fn withdraw(
        &mut self,
        by: Sender,
        both: bool,
        tombstone: bool,
        messages: &mut Vec<Message>,
    ) -> Result<(), String> {
        let lasts = if tombstone { TOMBSTONE } else { 0 };
        let mut args = Vec::new();
        let mut keys = Vec::new();
        for at in locks(both) {
            let [lock, _, queue, _] = self.locks[at].keys.clone();
            keys.extend([lock, queue]);
            args.extend(words([&client(by.client), &lasts]));
        }
        let Some(seen) = self.ask(by, "WITHDRAW", keys, args)? else { return Ok(()) };
        let millis = self.fixture.millis();
        let mut expected = Vec::new();
        for at in locks(both) {
            let owner = self.locks[at].attempt_of(by.client);
            let lock = &mut self.locks[at];
            lock.wait_no_more(by.client);
            if tombstone {
                lock.add_tombstone(by.client, millis, lasts);
            }
            if self.order(by, at, Order::Release { owner }) == Answer::Yes {
                messages.extend(self.locks[at].wake(millis));
            }
            expected.push(Value::Int(1));
        }
        same("the answer to the withdrawal", &Value::Array(expected), &seen)
    }

    fn force(&mut self, by: Sender, at: usize, messages: &mut Vec<Message>) -> Result<(), String> {
        let keys = self.locks[at].keys.to_vec();
        let args = words([&OPERATOR, &REASON, &MEMORY]);
        let Some(seen) = self.ask(by, "FORCE", keys, args)? else { return Ok(()) };
        let (millis, micros) = (self.fixture.millis(), self.fixture.micros());
        let lock = &mut self.locks[at];
        let mut expected = Vec::new();
        if let Some(owner) = lock.node.lock {
            let token = lock.force(millis, micros);
            expected.push(int(token.unwrap_or(0)));
            if token.is_some() {
                let channel = lock.record_channel();
                messages.push((channel, format!("f {}", client(owner / 4))));
            }
            // What an operator does is what a release by the holder would do.
            self.order(by, at, Order::Release { owner });
            messages.extend(self.locks[at].wake(millis));
        }
        same("the answer to the force-release", &Value::Array(expected), &seen)
    }

    fn stand(
        &mut self,
        word: &'static str,
        its_list: u8,
        epoch: i8,
        longest: u64,
        floor: Mark,
        keeps: bool,
    ) -> Result<(), String> {
        let epoch = self.epoch(epoch);
        let floor = self.resolve(Some(floor), 0);
        let keeps = if keeps { "+" } else { "-" };
        let args = words([&word, &list(its_list), &keeps, &epoch, &longest, &floor]);
        let seen = self.fixture.script("NODE_STATUS", &[self.marker_key()], &args);
        let run = format!("{}{keeps}", self.fixture.run_id());
        let order = match word {
            "notice" => Order::Notice,
            "found" => Order::Found,
            "seal" => Order::Seal,
            "install" => Order::Install { token: floor },
            // The model knows no time: what comes too early is like a step that is not taken.
            "readmit" if self.marker.has_waited(self.fixture.micros()) => Order::Readmit,
            _ => Order::Release { owner: u8::MAX },
        };
        let request = Request { epoch, list: its_list, order };
        let mut done = false;
        for lock in &mut self.locks {
            let answer = lock.node.step(&self.rules, request);
            done = matches!(answer, Answer::Yes | Answer::Sealed { .. });
            if let Answer::Sealed { last } = answer {
                assert!(last <= self.marker.ceiling, "{last} is above what a seal tells");
            }
        }
        match (order, done) {
            (Order::Release { .. }, _) if word == "arrive" => {
                // What was not synced for a while may be lost, whatever is synced now.
                done = keeps == "-" && self.marker.run.ends_with('+');
                if done {
                    self.marker.run = run;
                }
            }
            (Order::Found, true) => self.marker = Marker { run, ..Marker::default() },
            (Order::Install { .. }, true) => {
                let since = self.fixture.micros();
                self.marker = Marker { longest, ceiling: floor, floor, run, since };
            }
            _ => {}
        }
        self.tally.note(format!("{word}: {}", if done { "yes" } else { "no" }));
        let clock = int(self.fixture.micros());
        let expected = Value::Array(vec![Value::Int(done.into()), self.marker_value(), clock]);
        same(&format!("the answer to \"{word}\""), &expected, &seen)
    }

    /// The marker is of an earlier run of the server, and somebody arrives. Unless every write was
    /// synced, all else is of a time before any lock was taken.
    fn restart(&mut self, kept: bool, keeps: bool) {
        let sign = |keeps: bool| if keeps { "+" } else { "-" };
        let key = self.marker_key();
        if !(kept && keeps) {
            self.lose_locks();
        }
        if !matches!(self.node().status, Status::Blank | Status::Noticed) {
            self.marker.run = format!("0ddba11{}", sign(kept));
            let text = self.marker.text(self.node());
            self.fixture.ask::<()>(cmd("SET").arg(&key).arg(text));
            self.marker.run = format!("{}{}", self.fixture.run_id(), sign(keeps));
        }
        self.fixture.script("NODE_STATUS", &[key], &words([&"arrive", &"", &sign(keeps)]));
        for lock in &mut self.locks {
            lock.node.restart(&self.rules, kept && keeps);
        }
        let trusted = if kept && keeps { "trusted" } else { "not trusted" };
        self.tally.note(format!("restart: {trusted}"));
    }

    fn lose_locks(&mut self) {
        let mut delete = cmd("DEL");
        for lock in &mut self.locks {
            delete.arg(&lock.keys[..]);
            lock.lose();
        }
        self.fixture.ask::<i64>(&delete);
    }

    fn wipe(&mut self) {
        self.fixture.ask::<i64>(cmd("DEL").arg(self.marker_key()));
        self.lose_locks();
        self.marker = Marker::default();
        for lock in &mut self.locks {
            lock.node.forget();
        }
    }

    /// A number that is written relative to what is there.
    fn resolve(&self, mark: Option<Mark>, at: usize) -> u64 {
        match mark {
            None => 0,
            Some(Mark::Last(offset)) => self.locks[at].node.token.saturating_add_signed(offset),
            Some(Mark::Clock(seconds)) => {
                self.fixture.micros().saturating_add_signed(seconds * 1_000_000)
            }
        }
    }

    /// Compares all that is kept.
    fn compare(&mut self) -> Result<(), String> {
        let key = self.marker_key();
        let seen: Option<String> = self.fixture.ask(cmd("GET").arg(key));
        same("the marker", &self.marker.text(self.node()), &seen.unwrap_or_default())?;
        let millis = self.fixture.millis();
        for (at, lock) in self.locks.iter().enumerate() {
            let seen = register::look(self.fixture, &lock.keys);
            same(&format!("what is kept of lock {at}"), &lock.kept(millis), &seen)?;
        }
        Ok(())
    }
}

impl Comparison for NodeComparison<'_> {
    type Step = Step;

    fn random(&self, random: &mut fastrand::Rng) -> Step {
        Step::random(random)
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn replay(&mut self, steps: &[Step]) -> Result<(), Gap> {
        self.word = self.fixture.afresh();
        self.marker = Marker::default();
        self.locks = [0, 1].map(|lock| Register::new(&format!("{}:{lock}", self.word)));
        let founding = ["notice", "found"].map(Step::founding);
        for step in founding {
            self.step(step).map_err(|what| Gap { after: 0, what })?;
        }
        for (at, step) in steps.iter().enumerate() {
            self.step(*step).map_err(|what| Gap { after: at + 1, what })?;
        }
        Ok(())
    }
}

fn locks(both: bool) -> std::ops::Range<usize> {
    0..1 + usize::from(both)
}

/// Where it is yes to all, a node may say only to how many.
fn in_short(answer: Value) -> Value {
    match answer {
        Value::Array(each) if each.iter().all(|answer| *answer == Value::Int(1)) => {
            Value::Int(each.len() as i64)
        }
        answer => answer,
    }
}

fn int(number: u64) -> Value {
    Value::Int(number as i64)
}

/// A node that is new.
fn new_node() -> Node<u64> {
    Node { status: Status::Blank, ..Node::new(0) }
}
