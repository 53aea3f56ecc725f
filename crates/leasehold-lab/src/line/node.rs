//! The server: what it answers to a request, whom it grants the lock, and what it keeps. A pure
//! function of what it is asked.
//!
//! A real heartbeat has a number, and its sender remembers when it sent which. Here the *age* of
//! a heartbeat stands for both: how many ticks ago its sender sent it.

use super::{LIVE, OLDEST, SHORT, TTL};

/// What the server keeps.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Server {
    /// Who holds the lock.
    pub lock: Option<Held>,
    /// Who waits, in the order of their coming.
    pub line: Vec<Place>,
}

/// The lock, held.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Held {
    /// By whom.
    pub holder: u8,
    /// For how many more ticks.
    pub left: u8,
    /// What the grant says.
    pub grant: Grant,
}

/// A grant as its holder is told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Grant {
    /// For how many ticks, from the time it was granted.
    pub span: u8,
    /// How many ticks ago the holder sent the last request that had arrived by then.
    pub proof: u8,
}

/// A place in line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whose.
    pub waiter: u8,
    /// How many ticks ago the newest request of it that arrived was sent.
    pub proof: u8,
    /// How many ticks ago that arrived.
    pub quiet: u8,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Order {
    /// The lock, or a place in line.
    Claim,
    /// I still wait.
    Beat,
    /// For the whole TTL again.
    Renew,
    /// The lock back, and to the next in line.
    Release,
    /// Out of the line, or out of the lock that was granted meanwhile.
    Leave,
}

/// What the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// It is yours.
    Granted(Grant),
    /// You are in line.
    Queued,
    /// You are not in line: enqueue again.
    Unknown,
    /// Done.
    Done,
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
    /// A heartbeat that finds the lock free grants it to the next in line.
    pub beat_repairs: bool,
    /// Whoever is next; otherwise only its sender, if it is the first.
    pub beat_repairs_for_others: bool,
    /// A heartbeat of somebody who is not in line is told so.
    pub beat_tells_unknown: bool,
    /// A heartbeat of somebody who was granted the lock is told so.
    pub beat_tells_granted: bool,
    /// Who has not been heard of for long is passed over.
    pub skips_dead: bool,
    /// Grants to somebody who waits are short.
    pub short_grants: bool,
    /// A newcomer who finds the lock free lets those in line go first.
    pub newcomers_queue: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            beat_repairs: true,
            beat_repairs_for_others: true,
            beat_tells_unknown: true,
            beat_tells_granted: true,
            skips_dead: true,
            short_grants: true,
            newcomers_queue: true,
        }
    }
}

impl Server {
    /// Does what is asked, and answers; and tells somebody else, perhaps, that the lock is theirs.
    /// `age` is how many ticks ago the request was sent.
    pub fn step(
        &mut self,
        rules: &Rules,
        who: u8,
        order: Order,
        age: u8,
    ) -> (Answer, Option<Push>) {
        match order {
            Order::Claim => self.claim(rules, who, age),
            Order::Beat => self.beat(rules, who, age),
            Order::Renew => (self.renew(who, age), None),
            Order::Release | Order::Leave => {
                self.line.retain(|place| place.waiter != who || order == Order::Release);
                let mine = self.holds(who).is_some();
                if mine {
                    self.lock = None;
                }
                (Answer::Done, if mine { self.grant_next(rules) } else { None })
            }
        }
    }

    /// The grant of whoever holds the lock.
    pub fn holds(&self, who: u8) -> Option<Grant> {
        self.lock.filter(|held| held.holder == who).map(|held| held.grant)
    }

    /// Whether somebody is in line.
    pub fn waits(&self, who: u8) -> bool {
        self.line.iter().any(|place| place.waiter == who)
    }

    /// Whether somebody else is in line of whom was heard not long ago.
    pub fn has_live_waiter_before(&self, who: u8) -> bool {
        self.line.iter().take_while(|place| place.waiter != who).any(|place| place.quiet < LIVE)
    }

    fn claim(&mut self, rules: &Rules, who: u8, age: u8) -> (Answer, Option<Push>) {
        if let Some(grant) = self.holds(who) {
            return (Answer::Granted(grant), None);
        }
        let free = self.lock.is_none();
        let goes_first = !rules.newcomers_queue || !self.has_live_waiter_before(who);
        if free && goes_first {
            self.line.retain(|place| place.waiter != who);
            let grant = Grant { span: TTL, proof: age };
            self.lock = Some(Held { holder: who, left: TTL, grant });
            return (Answer::Granted(grant), None);
        }
        if !self.hear_of(who, age) {
            self.line.push(Place { waiter: who, proof: age, quiet: 0 });
        }
        (Answer::Queued, if free { self.grant_next(rules) } else { None })
    }

    fn beat(&mut self, rules: &Rules, who: u8, age: u8) -> (Answer, Option<Push>) {
        if let Some(grant) = self.holds(who) {
            let told = Answer::Granted(grant);
            return (if rules.beat_tells_granted { told } else { Answer::Queued }, None);
        }
        if !self.hear_of(who, age) && rules.beat_tells_unknown {
            return (Answer::Unknown, None);
        }
        let first = self.line.first().is_some_and(|place| place.waiter == who);
        let repairs = rules.beat_repairs && (rules.beat_repairs_for_others || first);
        if self.lock.is_some() || !repairs {
            return (Answer::Queued, None);
        }
        let push = self.grant_next(rules);
        match push {
            Some(push) if push.to == who => (Answer::Granted(push.grant), None),
            _ => (Answer::Queued, push),
        }
    }

    /// Notes a sign of life of somebody in line; not if a newer one came before.
    fn hear_of(&mut self, who: u8, age: u8) -> bool {
        let place = self.line.iter_mut().find(|place| place.waiter == who);
        let known = place.is_some();
        if let Some(place) = place.filter(|place| age <= place.proof) {
            place.proof = age;
            place.quiet = 0;
        }
        known
    }

    /// Grants the free lock to the first in line who lives.
    fn grant_next(&mut self, rules: &Rules) -> Option<Push> {
        self.line.retain(|place| place.quiet < LIVE || !rules.skips_dead);
        if self.line.is_empty() {
            return None;
        }
        let Place { waiter: to, proof, .. } = self.line.remove(0);
        let span = if rules.short_grants { SHORT } else { TTL };
        let grant = Grant { span, proof };
        self.lock = Some(Held { holder: to, left: span, grant });
        Some(Push { to, grant })
    }

    fn renew(&mut self, who: u8, age: u8) -> Answer {
        match &mut self.lock {
            Some(held) if held.holder == who => {
                held.left = TTL;
                held.grant = Grant { span: TTL, proof: age };
                Answer::Granted(held.grant)
            }
            _ => Answer::Unknown,
        }
    }

    /// Time passes.
    pub fn tick(&mut self) {
        if let Some(held) = &mut self.lock {
            held.left -= 1;
            held.grant.tick();
            if held.left == 0 {
                self.lock = None;
            }
        }
        for place in &mut self.line {
            place.proof = (place.proof + 1).min(OLDEST);
            place.quiet = (place.quiet + 1).min(LIVE);
        }
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
