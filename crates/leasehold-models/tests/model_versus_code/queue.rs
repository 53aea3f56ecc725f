//! The queue of the Redis store, and the server of the model `queue`.
//!
//! A tick of the model is two seconds: of that, the scripts' three seconds are more than one tick
//! and less than two, as the model's are. Two locks, so that calls can be for both.

mod ledger;
mod seen;

use leasehold_models::queue::node::{Answer, Held, Order, Rules, Server};
use leasehold_models::queue::{LIVE, TTL};
use redis::{Value, cmd};

use crate::episode::{Comparison, Gap, Tally, same};
use crate::fixture::{Fixture, Message, words};
use ledger::{Ledger, MEMORY};
use seen::Seen;

/// How many seconds a tick has.
const TICK: u64 = 2;
/// The TTL of every claim, in ms: more than two ticks, less than three.
const TTL_MS: u64 = 5_000;
/// For how long a settled owner keeps its tombstone, in ms: more than three ticks, less than four.
const TOMBSTONE_MS: u64 = 7_000;
/// For how many ticks the queue outlives the last sign of life of anybody in it.
const LINGER: u64 = 1_800;
/// How many clients there are.
const CLIENTS: u8 = 4;
/// Who is none of them, and knows nothing of queues.
const FOREIGN: u8 = 99;
/// Who forces locks.
const OPERATOR: &str = "operator";

/// Something to do to both.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// A request arrives, for one lock or both.
    Ask { client: u8, order: Order, locks: Locks, age: u8 },
    /// A client asks why its lease is gone.
    Why { client: u8, lock: usize },
    /// Time passes.
    Tick,
    /// More time passes than anything but tokens is kept for; or more than tokens are.
    Long { seconds: u64 },
    /// A foreign client sets the lock, as a string or as something else.
    Foreign { lock: usize, string: bool },
    /// The lock's key is deleted.
    LoseLock { lock: usize },
    /// The queue is lost.
    LoseQueue { lock: usize },
    /// The last token is lost; then time passes.
    LoseRecord { lock: usize },
}

/// For which locks a request is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Locks {
    First,
    Second,
    Both,
}

/// Both of them.
pub(crate) struct QueueComparison<'a> {
    fixture: &'a mut Fixture,
    rules: Rules,
    word: String,
    ticks: u64,
    locks: [Lock; 2],
    tally: Tally,
}

/// One lock in the model, and what goes with it.
#[derive(Debug, Default)]
struct Lock {
    server: Server,
    ledger: Ledger,
    /// When somebody in the queue was heard of last, in ticks.
    heard: u64,
    /// The foreign holder's key is no string.
    odd: bool,
}

impl<'a> QueueComparison<'a> {
    pub(crate) fn new(fixture: &'a mut Fixture, rules: Rules) -> Self {
        let (word, locks, tally) = Default::default();
        Self { fixture, rules, word, ticks: 0, locks, tally }
    }

    fn keys(&self, lock: usize) -> [String; 4] {
        let key = format!("{}:{lock}", self.word);
        [key.clone(), format!("{key}:record"), format!("{key}:queue"), format!("{key}:forced")]
    }

    /// The key of a client's tombstone.
    fn tombstone(&self, lock: usize, client: u8) -> String {
        format!("{}:{lock}:bar:{client}", self.word)
    }

    /// What a client says about its place: what it was told last, something that is not true (any
    /// more), or nothing, if it has none.
    fn said(&mut self, client: u8, lock: usize) -> String {
        let [_, _, queue, _] = self.keys(lock);
        let waits = self.locks[lock].server.waits(client);
        if self.ticks.is_multiple_of(2) {
            return if waits { "0 0".to_owned() } else { String::new() };
        }
        let waiters: Vec<String> = self.fixture.ask(cmd("LRANGE").arg(queue).arg(0).arg(-1));
        let known = waiters.iter().find(|waiter| waiter.starts_with(&owner(client)));
        let words = known.map(|waiter| waiter.split(' ').skip(1).take(2).collect::<Vec<_>>());
        words.map_or_else(|| "1 1".to_owned(), |words| words.join(" "))
    }

    fn channel(&self, client: u8) -> String {
        format!("{}:client{client}", self.word)
    }

    fn step(&mut self, step: Step) -> Result<(), String> {
        let mut messages = Vec::new();
        match step {
            Step::Ask { client, order, locks, age } => {
                let locks: &[usize] = match locks {
                    Locks::First => &[0],
                    Locks::Second => &[1],
                    Locks::Both => &[0, 1],
                };
                // These are about one lock in one call.
                let alone = matches!(order, Order::Leave | Order::Force);
                for some in locks.chunks(if alone { 1 } else { 2 }) {
                    self.ask(client, order, some, age, &mut messages)?;
                }
            }
            Step::Why { client, lock } => self.why(client, lock)?,
            Step::Tick => self.pass(TICK),
            Step::Long { seconds } => self.pass(seconds),
            Step::Foreign { lock, string } => self.foreign(lock, string),
            Step::LoseLock { lock } => {
                let [key, ..] = self.keys(lock);
                self.fixture.ask::<i64>(cmd("DEL").arg(key));
                self.locks[lock].server.lock = None;
            }
            Step::LoseQueue { lock } => {
                let [_, _, queue, _] = self.keys(lock);
                self.fixture.ask::<i64>(cmd("DEL").arg(queue));
                self.locks[lock].server.queue.clear();
            }
            Step::LoseRecord { lock } => {
                let [_, record, ..] = self.keys(lock);
                self.fixture.ask::<i64>(cmd("DEL").arg(record));
                self.locks[lock].ledger.lose();
                self.pass(TICK);
            }
        }
        // Of several locks in one call, those whose case is common come first.
        let mut published = self.fixture.messages();
        messages.sort();
        published.sort();
        same("what was published", &messages, &published)?;
        (0..self.locks.len()).try_for_each(|lock| self.compare(lock))
    }

    /// One call of a script about these locks.
    fn ask(
        &mut self,
        client: u8,
        order: Order,
        locks: &[usize],
        age: u8,
        messages: &mut Vec<Message>,
    ) -> Result<(), String> {
        let answer = self.call(client, order, locks, age);
        let alone = matches!(order, Order::Leave | Order::Force);
        let answers = match answer {
            Value::Array(answers) if !alone => answers,
            answer => vec![answer],
        };
        same("how many answers", &locks.len(), &answers.len())?;
        for (&lock, seen) in locks.iter().zip(answers) {
            let forced = self.forced(order, lock, messages);
            let expected = self.expect(client, order, lock, age, messages);
            let expected = forced.or(expected);
            same(&format!("the answer about lock {lock}"), &expected, &Some(seen))?;
        }
        Ok(())
    }

    fn call(&mut self, client: u8, order: Order, locks: &[usize], age: u8) -> Value {
        let (owner, channel) = (owner(client), format!("P:{}", self.channel(client)));
        let number = self.ticks - u64::from(age);
        let mut keys = Vec::new();
        let mut args = Vec::new();
        let (script, companions) = match order {
            Order::Claim | Order::Try => ("ACQUIRE", 3),
            Order::Beat => ("BEAT", 3),
            Order::Renew => ("RENEW", 2),
            Order::Release => ("RELEASE", 3),
            Order::Leave => ("LEAVE", 3),
            Order::Settle => ("SETTLE", 3),
            Order::Force => ("FORCE", 4),
        };
        if matches!(script, "ACQUIRE" | "BEAT" | "SETTLE" | "LEAVE") {
            args.push(format!("{channel} {}", holder(client)));
        }
        for &lock in locks {
            keys.extend(self.keys(lock).into_iter().take(companions));
            if matches!(script, "ACQUIRE" | "SETTLE") {
                keys.push(self.tombstone(lock, client));
            }
            let said = self.said(client, lock);
            let token = self.locks[lock].ledger.known(client);
            args.extend(match order {
                Order::Claim => words([&owner, &TTL_MS, &number, &said]),
                Order::Try => words([&owner, &TTL_MS, &0, &said]),
                Order::Beat => words([&owner, &TTL_MS, &number, &said]),
                Order::Renew => words([&owner, &token, &TTL_MS]),
                Order::Release => words([&owner, &token]),
                Order::Leave => words([&owner, &TTL_MS, &said]),
                Order::Settle => words([&owner, &TTL_MS, &TOMBSTONE_MS, &said]),
                Order::Force => words([&OPERATOR, &reason(self.ticks), &(1000 * MEMORY)]),
            });
        }
        self.fixture.script(script, &keys, &args)
    }

    /// What a force-release answers and says, before it is done.
    fn forced(&mut self, order: Order, at: usize, messages: &mut Vec<Message>) -> Option<Value> {
        let micros = self.fixture.micros();
        let lock = &mut self.locks[at];
        let held = lock.server.lock.filter(|_| order == Order::Force)?;
        let token = lock.ledger.of(held.holder);
        lock.ledger.force(token.unwrap_or(0), reason(self.ticks), micros);
        if token.is_some() && lock.ledger.has_channel() {
            messages.push((self.channel(held.holder), format!("f {}", owner(held.holder))));
        }
        Some(Value::Int(token.unwrap_or(0) as i64))
    }

    /// What the model answers, as the script says it; `None` for what a script answers nothing to.
    fn expect(
        &mut self,
        client: u8,
        order: Order,
        at: usize,
        age: u8,
        messages: &mut Vec<Message>,
    ) -> Option<Value> {
        let (micros, ticks) = (self.fixture.micros(), self.ticks);
        let listener = |to: u8| format!("P:{}:client{to} {}", self.word, holder(to));
        let lock = &mut self.locks[at];
        let before = lock.server.clone();
        let (answer, said) = lock.server.step(&self.rules, client, order, age);
        self.tally.note(format!("{order:?}: {}", title(answer)));
        said.passed.iter().for_each(|_| self.tally.note("passed over"));
        said.push.iter().for_each(|_| self.tally.note("pushed"));
        // Who gives it back says which token was the last.
        let release = order == Order::Release;
        let last = if release { lock.ledger.known(client) } else { lock.ledger.last() };
        let passed = said.passed.iter().map(|&over| (over, format!("a {}", owner(over))));
        let mut told: Vec<(u8, String)> = passed.collect();
        if let Some(push) = said.push {
            let token = lock.ledger.grant(push.to, listener(push.to), last, micros);
            let number = ticks - u64::from(push.grant.proof);
            told.push((push.to, format!("g {} {token} {number} 3000", owner(push.to))));
        }
        let token = match (order, answer) {
            (Order::Renew, Answer::Granted(_)) => {
                lock.ledger.renew(client, micros);
                0
            }
            (_, Answer::Granted(_)) if before.lock.is_none() && said.push.is_none() => {
                lock.ledger.grant(client, listener(client), last, micros)
            }
            (_, Answer::Granted(_)) => lock.ledger.tell(client, listener(client), micros),
            _ => 0,
        };
        let beats = order == Order::Beat && before.waits(client) && !before.holds(client);
        if beats || (order == Order::Claim && answer == Answer::Queued) {
            lock.heard = ticks;
        }
        // A heartbeat is told where it stood when it came, a claim where it stands now.
        let queue = if order == Order::Beat { &before.queue } else { &lock.server.queue };
        let first = queue.first().is_some_and(|place| place.waiter == client);
        let answer = self.say(order, at, answer, token, first);
        messages.extend(told.into_iter().map(|(to, text)| (self.channel(to), text)));
        answer
    }

    /// An answer of the model in the words of the script.
    fn say(
        &self,
        order: Order,
        at: usize,
        answer: Answer,
        token: u64,
        first: bool,
    ) -> Option<Value> {
        let lock = &self.locks[at];
        let holds = lock.server.lock.map_or(String::new(), |held| lock.text(held));
        let record = lock.ledger.record_text();
        let text = |text: String| Value::BulkString(text.into_bytes());
        let left = Value::Int(lock.left().map_or(-2, |left| left as i64));
        // Only who is first in the queue is told when to ask again.
        let none = Value::Int(-1);
        let seen = || text(self.fixture.millis().to_string());
        Some(match (order, answer) {
            (Order::Renew, Answer::Granted(_)) => Value::Int(1),
            (_, Answer::Granted(_)) => Value::Int(token as i64),
            (Order::Claim, Answer::Queued) => {
                let left = if first { left } else { none };
                Value::Array(vec![Value::Int(1), left, text(holds), text(record), seen()])
            }
            (_, Answer::Queued) => {
                Value::Array(vec![Value::Int(1), left, Value::Int(first.into()), seen()])
            }
            (_, Answer::Held) => Value::Array(vec![Value::Int(0), none, text(holds), text(record)]),
            (_, Answer::Tombstone) => {
                let nobody = || text(String::new());
                Value::Array(vec![Value::Int(0), none, nobody(), nobody()])
            }
            (_, Answer::Unknown) => Value::Array(vec![Value::Int(0)]),
            (_, Answer::Done) => Value::Int(1),
            (Order::Force, Answer::NotHeld) => Value::Nil,
            (_, Answer::NotHeld) => Value::Int(0),
        })
    }

    fn why(&mut self, client: u8, at: usize) -> Result<(), String> {
        let [key, _, _, forced] = self.keys(at);
        let token = self.locks[at].ledger.known(client);
        let seen = self.fixture.script("REASON", &[key, forced], &words([&token]));
        let lock = &self.locks[at];
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let expected = match lock.ledger.forced() {
            Some((forced, why)) if forced == token => Value::Array(vec![text(OPERATOR), text(why)]),
            _ => Value::Int(lock.server.lock.is_some().into()),
        };
        same("why it is gone", &Value::Array(vec![expected]), &seen)
    }

    fn foreign(&mut self, at: usize, string: bool) {
        let [key, ..] = self.keys(at);
        self.fixture.ask::<i64>(cmd("DEL").arg(&key));
        if string {
            let mut set = cmd("SET");
            self.fixture.ask::<()>(set.arg(&key).arg(owner(FOREIGN)).arg("PX").arg(TTL_MS));
        } else {
            self.fixture.ask::<i64>(cmd("HSET").arg(&key).arg("uuid:1").arg(1));
            self.fixture.ask::<i64>(cmd("PEXPIRE").arg(&key).arg(TTL_MS));
        }
        let lock = &mut self.locks[at];
        lock.server.lock = Some(Held { holder: FOREIGN, left: TTL });
        lock.odd = !string;
    }

    fn pass(&mut self, seconds: u64) {
        self.fixture.pass(seconds);
        for _ in 0..seconds / TICK {
            self.ticks += 1;
            for lock in &mut self.locks {
                lock.server.tick();
                if self.ticks - lock.heard > LINGER {
                    lock.server.queue.clear();
                }
            }
        }
        for lock in &mut self.locks {
            lock.ledger.pass(seconds);
        }
    }

    /// Compares all that is kept.
    fn compare(&mut self, at: usize) -> Result<(), String> {
        let keys = self.keys(at);
        let tombstones: Vec<_> =
            (0..CLIENTS).map(|client| (client, self.tombstone(at, client))).collect();
        let seen = Seen::look(self.fixture, &keys, &tombstones, self.ticks)?;
        let lock = &self.locks[at];
        let what = |what: &str| format!("{what} of lock {at}");
        let holds = lock.server.lock.map(|held| (lock.text(held), held.left));
        same(&what("the holder"), &holds, &seen.holder)?;
        same(&what("the queue"), &lock.server.queue, &seen.queue)?;
        let mut tombstones = lock.server.tombstones.clone();
        tombstones.sort_by_key(|tombstone| tombstone.owner);
        same(&what("the tombstones"), &tombstones, &seen.tombstones)?;
        same(&what("the record"), &lock.ledger.record_text(), &seen.record)?;
        let waiting = lock.server.queue.iter().filter(|place| place.quiet < LIVE).count();
        same(&what("how many wait"), &waiting, &seen.waiting)?;
        same(&what("the last force-release"), &lock.ledger.forced_text(), &seen.forced)
    }
}

impl Lock {
    /// What the lock's key holds.
    fn text(&self, held: Held) -> String {
        if held.holder == FOREIGN && self.odd { String::new() } else { owner(held.holder) }
    }

    /// What is left of the present lease, in ms: it began with one of two terms.
    fn left(&self) -> Option<u64> {
        let left = self.server.lock?.left;
        Some((u64::from(left) - 1) * 1000 * TICK + 1000)
    }
}

impl Comparison for QueueComparison<'_> {
    type Step = Step;

    fn random(&self, random: &mut fastrand::Rng) -> Step {
        let client = random.u8(..CLIENTS);
        let lock = random.usize(..2);
        let locks = match random.u8(..5) {
            0 => Locks::Both,
            1 => Locks::Second,
            _ => Locks::First,
        };
        let age = random.u8(..3) * random.u8(..2);
        let ask = |order| Step::Ask { client, order, locks, age };
        match random.u8(..100) {
            0..28 => ask(Order::Claim),
            28..33 => ask(Order::Try),
            33..52 => ask(Order::Beat),
            52..58 => ask(Order::Renew),
            58..70 => ask(Order::Release),
            70..75 => ask(Order::Leave),
            75..78 => ask(Order::Settle),
            78..80 => ask(Order::Force),
            80..82 => Step::Why { client, lock },
            82..93 => Step::Tick,
            93 => Step::Long { seconds: if random.bool() { 62 } else { 7_300 } },
            94 => Step::Foreign { lock, string: random.bool() },
            95 | 96 => Step::LoseLock { lock },
            97 => Step::LoseQueue { lock },
            _ => Step::LoseRecord { lock },
        }
    }

    fn tally(&self) -> &Tally {
        &self.tally
    }

    fn replay(&mut self, steps: &[Step]) -> Result<(), Gap> {
        self.word = self.fixture.afresh();
        self.ticks = 1_000;
        self.locks = Default::default();
        for (at, step) in steps.iter().enumerate() {
            self.step(*step).map_err(|what| Gap { after: at + 1, what })?;
        }
        Ok(())
    }
}

fn title(answer: Answer) -> &'static str {
    match answer {
        Answer::Granted(_) => "granted",
        Answer::Queued => "queued",
        Answer::Held => "held",
        Answer::Tombstone => "tombstone",
        Answer::Unknown => "unknown",
        Answer::Done => "done",
        Answer::NotHeld => "not held",
    }
}

/// The owner by which a client is known: 32 digits, as real ones have.
fn owner(client: u8) -> String {
    format!("{client:032x}")
}

/// The client whose owner this is.
fn client_of(owner: &str) -> Option<u8> {
    u8::try_from(u128::from_str_radix(owner, 16).ok()?).ok().filter(|_| owner.len() == 32)
}

/// Why a lock is forced in this tick.
fn reason(ticks: u64) -> String {
    format!("because {ticks}")
}

fn holder(client: u8) -> String {
    format!("{client},host,label")
}
