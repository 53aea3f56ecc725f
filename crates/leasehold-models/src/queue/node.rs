//! The server: what it answers to a request, whom it grants the lock, and what it keeps. A pure
//! function of what it is asked.
//!
//! A real heartbeat has a number, and its sender remembers when it sent which. Here the *age* of
//! a heartbeat stands for both: how many ticks ago its sender sent it.

use super::{LIVE, OLDEST, SHORT, TOMBSTONE, TTL};

/// What the server keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Server {
    /// Who holds the lock.
    pub lock: Option<Held>,
    /// Who waits, in the order of their coming.
    pub queue: Vec<Place>,
    /// Whose claims are refused. (Nobody has one in what is explored here: see `contract`.)
    pub tombstones: Vec<Tombstone>,
}

/// The lock, held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// By whom.
    pub holder: u8,
    /// For how many more ticks.
    pub left: u8,
}

/// A grant as its holder is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// For how many ticks, from the time it was granted.
    pub span: u8,
    /// How many ticks ago the holder sent the last request that had arrived by then.
    pub proof: u8,
}

/// A place in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whose.
    pub waiter: u8,
    /// How many ticks ago the request of it that arrived last was sent.
    pub proof: u8,
    /// How many ticks ago that arrived.
    pub quiet: u8,
}

/// Somebody's claims are refused: one may still be on its way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tombstone {
    /// Whose.
    pub owner: u8,
    /// For how many more ticks.
    pub left: u8,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The lock, or a place in the queue.
    Claim,
    /// The lock, or nothing.
    Try,
    /// I still wait.
    Beat,
    /// For the whole TTL again.
    Renew,
    /// The lock back, and to the next in the queue.
    Release,
    /// Out of the queue, or out of the lock that was granted meanwhile.
    Leave,
    /// Is it mine? If not, let no claim of mine take it from now on.
    Settle,
    /// Away from its holder, whoever that is.
    Force,
}

/// What the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is yours.
    Granted(Grant),
    /// You are in the queue.
    Queued,
    /// It is another's.
    Held,
    /// You have a tombstone: your claims are refused.
    Tombstone,
    /// You are not in the queue: enqueue again.
    Unknown,
    /// Done.
    Done,
    /// It is not yours; or nobody's, when it was to be forced.
    NotHeld,
}

/// What the server says to others than the one who asked.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Said {
    /// To somebody who waited: the lock is yours.
    pub push: Option<Push>,
    /// To those who were passed over: you lost your place, ask again.
    pub passed: Vec<u8>,
}

/// A message to somebody who waits: the lock is yours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Push {
    /// To whom.
    pub to: u8,
    /// What was granted.
    pub grant: Grant,
}

/// What the server does. All of it, but in the variants that must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules {
    /// A heartbeat that finds the lock free grants it to the next in the queue.
    pub beat_repairs: bool,
    /// Whoever is next; otherwise only its sender, if it is the first.
    pub beat_repairs_for_others: bool,
    /// The answer to a heartbeat says when its sender is not in the queue.
    pub beat_tells_unknown: bool,
    /// The answer to a heartbeat says when its sender was granted the lock.
    pub beat_tells_granted: bool,
    /// Whoever asks and is told of a grant has it for the whole TTL from then on.
    pub telling_extends: bool,
    /// Who has not been heard of for long is passed over.
    pub skips_dead: bool,
    /// Grants to somebody who waits are short.
    pub short_grants: bool,
    /// A newcomer who finds the lock free lets those in the queue go first.
    pub newcomers_queue: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            beat_repairs: true,
            beat_repairs_for_others: true,
            beat_tells_unknown: true,
            beat_tells_granted: true,
            telling_extends: true,
            skips_dead: true,
            short_grants: true,
            newcomers_queue: true,
        }
    }
}

impl Server {
    /// Does what is asked, answers, and says to others what they must know. `age` is how many
    /// ticks ago the request was sent.
    pub fn step(&mut self, rules: &Rules, who: u8, order: Order, age: u8) -> (Answer, Said) {
        let mut said = Said::default();
        let answer = match order {
            Order::Claim | Order::Try => self.claim(rules, who, order, age, &mut said),
            Order::Beat => self.beat(rules, who, age, &mut said),
            Order::Renew if self.holds(who) => self.extend(age),
            Order::Release if self.holds(who) => self.free(rules, &mut said),
            Order::Leave => {
                self.step_out(who);
                if self.holds(who) {
                    self.free(rules, &mut said);
                }
                Answer::Done
            }
            Order::Settle if self.holds(who) => self.extend(age),
            Order::Settle => {
                self.step_out(who);
                self.tombstones.retain(|tombstone| tombstone.owner != who);
                self.tombstones.push(Tombstone { owner: who, left: TOMBSTONE });
                Answer::NotHeld
            }
            Order::Force if self.lock.is_some() => self.free(rules, &mut said),
            Order::Renew | Order::Release | Order::Force => Answer::NotHeld,
        };
        (answer, said)
    }

    /// Whether somebody holds the lock.
    pub fn holds(&self, who: u8) -> bool {
        self.lock.is_some_and(|held| held.holder == who)
    }

    /// Whether somebody is in the queue.
    pub fn waits(&self, who: u8) -> bool {
        self.queue.iter().any(|place| place.waiter == who)
    }

    /// Whether somebody else is in the queue of whom was heard not long ago.
    pub fn has_live_waiter_before(&self, who: u8) -> bool {
        self.queue.iter().take_while(|place| place.waiter != who).any(Place::lives)
    }

    fn claim(&mut self, rules: &Rules, who: u8, order: Order, age: u8, said: &mut Said) -> Answer {
        if self.tombstones.iter().any(|tombstone| tombstone.owner == who) {
            return Answer::Tombstone;
        }
        if self.lock.is_none() {
            if rules.newcomers_queue {
                self.serve(rules, said);
            } else {
                self.step_out(who);
            }
            if self.lock.is_none() {
                self.lock = Some(Held { holder: who, left: TTL });
                return Answer::Granted(Grant { span: TTL, proof: age });
            }
        }
        if self.holds(who) {
            return self.tell_holder(rules, age);
        }
        if order == Order::Try {
            return Answer::Held;
        }
        if !self.hear_of(who, age) {
            self.queue.push(Place { waiter: who, proof: age, quiet: 0 });
        }
        Answer::Queued
    }

    fn beat(&mut self, rules: &Rules, who: u8, age: u8, said: &mut Said) -> Answer {
        if self.holds(who) {
            let told = rules.beat_tells_granted;
            return if told { self.tell_holder(rules, age) } else { Answer::Queued };
        }
        if !self.hear_of(who, age) && rules.beat_tells_unknown {
            return Answer::Unknown;
        }
        let first = self.queue.first().is_some_and(|place| place.waiter == who);
        let repairs = rules.beat_repairs && (rules.beat_repairs_for_others || first);
        if self.lock.is_none() && repairs {
            self.serve(rules, said);
        }
        if self.holds(who) { self.tell_holder(rules, age) } else { Answer::Queued }
    }

    /// Notes a sign of life of somebody in the queue. One that was overtaken on its way counts as
    /// well: then a grant names an older one, and its deadline is too early at worst.
    fn hear_of(&mut self, who: u8, age: u8) -> bool {
        let place = self.queue.iter_mut().find(|place| place.waiter == who);
        let known = place.is_some();
        if let Some(place) = place {
            place.proof = age;
            place.quiet = 0;
        }
        known
    }

    fn step_out(&mut self, who: u8) {
        self.queue.retain(|place| place.waiter != who);
    }

    fn free(&mut self, rules: &Rules, said: &mut Said) -> Answer {
        self.lock = None;
        self.serve(rules, said);
        Answer::Done
    }

    /// Grants the free lock to the first waiter that lives; those before it are passed over.
    fn serve(&mut self, rules: &Rules, said: &mut Said) {
        let next = self.queue.iter().position(|place| place.lives() || !rules.skips_dead);
        let over = self.queue.drain(..next.unwrap_or(self.queue.len()));
        said.passed.extend(over.map(|place| place.waiter));
        if next.is_none() {
            return;
        }
        let Place { waiter: to, proof, .. } = self.queue.remove(0);
        let span = if rules.short_grants { SHORT } else { TTL };
        self.lock = Some(Held { holder: to, left: span });
        said.push = Some(Push { to, grant: Grant { span, proof } });
    }

    /// Tells the holder, who asked, of its grant.
    fn tell_holder(&mut self, rules: &Rules, age: u8) -> Answer {
        if rules.telling_extends {
            return self.extend(age);
        }
        Answer::Granted(Grant { span: TTL, proof: age })
    }

    fn extend(&mut self, age: u8) -> Answer {
        if let Some(held) = &mut self.lock {
            held.left = TTL;
        }
        Answer::Granted(Grant { span: TTL, proof: age })
    }

    /// Time passes.
    pub fn tick(&mut self) {
        self.lock = self.lock.map(|held| Held { left: held.left - 1, ..held });
        self.lock = self.lock.filter(|held| held.left > 0);
        for place in &mut self.queue {
            place.proof = (place.proof + 1).min(OLDEST);
            place.quiet = (place.quiet + 1).min(LIVE);
        }
        for tombstone in &mut self.tombstones {
            tombstone.left -= 1;
        }
        self.tombstones.retain(|tombstone| tombstone.left > 0);
    }
}

impl Place {
    /// Whether it was heard of not long ago.
    fn lives(&self) -> bool {
        self.quiet < LIVE
    }
}

impl Grant {
    /// For how many more ticks the holder may act.
    pub fn deadline(&self) -> u8 {
        self.span.saturating_sub(self.proof)
    }

    /// Time passes.
    pub fn tick(&mut self) {
        self.proof = (self.proof + 1).min(OLDEST);
    }
}
