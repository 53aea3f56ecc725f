//! The claims of this client that wait in lines at the store.
//!
//! A waiter is registered before its claim is sent, because the message of its grant may
//! overtake the answer to the claim. Claims and heartbeats are numbered; a grant names the
//! last number that the store had seen, and its deadline counts from when that was sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};

use crate::backend::{Claim, Grant, Hint, Proof, Turn};
use crate::clock::{Clock, Moment};
use crate::owner::Owner;
use crate::token::Token;

/// The longest time between two heartbeats.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// The shortest time between two heartbeats.
const SHORTEST_PAUSE: Duration = Duration::from_millis(20);
/// Heartbeats that are due this soon travel with those that are due.
const TOGETHER: Duration = Duration::from_millis(50);
/// How many hints may be on their way; what is beyond them, renewals tell.
const HINTS: usize = 64;
/// How many unanswered numbers of one waiter are remembered.
const NUMBERS: usize = 64;

/// All waiters of a client.
#[derive(Debug)]
pub(super) struct Waiters {
    clock: Clock,
    table: Mutex<HashMap<Owner, Arc<Waiter>>>,
    /// Never used twice and never zero, so that a grant cannot name the wrong one.
    numbers: AtomicU64,
    /// Somebody's heartbeat may be due earlier than it was.
    due_changed: Notify,
    /// When whoever sends heartbeats looks by itself, in nanoseconds: only who is due
    /// earlier rings.
    looks_at: AtomicU64,
    hints: mpsc::Sender<Hint>,
    hinted: tokio::sync::Mutex<mpsc::Receiver<Hint>>,
}

/// A claim in line.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Claim,
    bell: Notify,
    standing: Mutex<Standing>,
}

#[derive(Debug)]
struct Standing {
    /// What was sent, and when.
    sent: VecDeque<(u64, Moment)>,
    turn: Option<Turn>,
    /// How many futures wait on it: without one its place lapses.
    attended: usize,
    beat_at: Moment,
}

/// Claims that are just being sent: those that get no place are forgotten.
#[derive(Debug)]
pub(super) struct Registered<'a> {
    waiters: &'a Waiters,
    owners: Vec<Owner>,
}

impl Waiters {
    pub(super) fn new(clock: Clock) -> Arc<Self> {
        let (hints, hinted) = mpsc::channel(HINTS);
        Arc::new(Self {
            clock,
            table: Mutex::default(),
            numbers: AtomicU64::new(1),
            due_changed: Notify::new(),
            looks_at: AtomicU64::new(Moment::NEVER.as_nanos()),
            hints,
            hinted: tokio::sync::Mutex::new(hinted),
        })
    }

    pub(super) fn next_number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// From now on a grant to these claims, which are sent now under this number, is heard.
    pub(super) fn register<'a>(
        &self,
        claims: impl Iterator<Item = &'a Claim>,
        number: u64,
        at: Moment,
    ) -> Registered<'_> {
        let mut owners = Vec::new();
        let mut table = self.table.lock();
        for claim in claims.filter(|claim| claim.queue) {
            let waiter = table.entry(claim.owner).or_insert_with(|| Waiter::new(claim.clone()));
            waiter.sending(number, at);
            owners.push(claim.owner);
        }
        drop(table);
        Registered { waiters: self, owners }
    }

    pub(super) fn get(&self, owner: Owner) -> Option<Arc<Waiter>> {
        self.table.lock().get(&owner).cloned()
    }

    pub(super) fn forget(&self, owner: Owner) {
        self.table.lock().remove(&owner);
    }

    /// A message of the store.
    pub(super) fn heard(&self, message: &[u8]) {
        let Some(message) = std::str::from_utf8(message).ok().and_then(Message::parse) else {
            tracing::debug!("a message that no script of ours sends");
            return;
        };
        match message {
            Message::Granted { owner, token, number, term } => {
                let Some(waiter) = self.get(owner) else { return };
                // A number that is not known any more proves nothing: ask.
                let turn = waiter.sent_at(number).map_or(Turn::TryAgain, |at| {
                    Turn::Granted(Grant { token, proof: Proof { at, valid_for: term } })
                });
                waiter.wake(turn);
            }
            Message::AskAgain { owner } => {
                if let Some(waiter) = self.get(owner) {
                    waiter.wake(Turn::TryAgain);
                }
            }
            Message::Forced { owner } => self.hint(Hint::Lease(owner)),
        }
    }

    /// A connection ended: what was pushed meanwhile is lost, so everybody asks.
    pub(super) fn disconnected(&self) {
        let now = self.clock.now();
        for waiter in self.table.lock().values() {
            waiter.standing.lock().beat_at = now;
        }
        self.due_changed.notify_one();
    }

    /// There is a connection again, perhaps to a server that remembers less.
    pub(super) fn reconnected(&self) {
        self.hint(Hint::All);
        self.disconnected();
    }

    pub(super) fn hint(&self, hint: Hint) {
        // Nobody may listen, or too many are on their way: renewals tell as well.
        let _ = self.hints.try_send(hint);
    }

    pub(super) async fn next_hint(&self) -> Hint {
        // The sender lives as long as this.
        self.hinted.lock().await.recv().await.unwrap_or(Hint::All)
    }

    /// Waits until a heartbeat may be due: at this moment, or when somebody rings.
    pub(super) async fn until_due(&self, next: Moment) {
        // Who rang before this line is heard below, who comes after it compares.
        self.looks_at.store(next.as_nanos(), Ordering::SeqCst);
        tokio::select! {
            () = self.due_changed.notified() => {}
            () = self.clock.sleep_until(next) => {}
        }
    }

    /// Whose heartbeat is due, and when the next one is.
    pub(super) fn due(&self, now: Moment) -> (Vec<Arc<Waiter>>, Moment) {
        // Until the look is over everybody rings.
        self.looks_at.store(Moment::NEVER.as_nanos(), Ordering::SeqCst);
        let mut due = Vec::new();
        let mut next = Moment::NEVER;
        let mut earliest = Moment::NEVER;
        let table = self.table.lock();
        for waiter in table.values() {
            let standing = waiter.standing.lock();
            if standing.attended == 0 || standing.turn.is_some() {
                continue;
            }
            earliest = earliest.min(standing.beat_at);
            if standing.beat_at <= now + TOGETHER {
                due.push(waiter.clone());
            } else {
                next = next.min(standing.beat_at);
            }
        }
        if earliest <= now { (due, next) } else { (Vec::new(), earliest) }
    }
}

impl Registered<'_> {
    /// This claim has its place.
    pub(super) fn keep(&mut self, owner: Owner) {
        self.owners.retain(|registered| *registered != owner);
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if self.owners.is_empty() {
            return;
        }
        let mut table = self.waiters.table.lock();
        for owner in &self.owners {
            table.remove(owner);
        }
    }
}

impl Waiter {
    fn new(claim: Claim) -> Arc<Self> {
        let standing =
            Standing { sent: VecDeque::new(), turn: None, attended: 0, beat_at: Moment::NEVER };
        Arc::new(Self { claim, bell: Notify::new(), standing: Mutex::new(standing) })
    }

    /// A claim or heartbeat leaves now, under this number.
    pub(super) fn sending(&self, number: u64, at: Moment) {
        let mut standing = self.standing.lock();
        standing.sent.push_back((number, at));
        if standing.sent.len() > NUMBERS {
            standing.sent.pop_front();
        }
        standing.beat_at = at + pause(&self.claim);
    }

    fn sent_at(&self, number: u64) -> Option<Moment> {
        let standing = self.standing.lock();
        standing.sent.iter().find(|(sent, _)| *sent == number).map(|(_, at)| *at)
    }

    /// The store has seen this number: no grant names an earlier one. The lock may be free
    /// by itself after `left`, which the first in line looks after.
    pub(super) fn seen(&self, number: u64, now: Moment, left: Option<Duration>) {
        let mut standing = self.standing.lock();
        standing.sent.retain(|(sent, _)| *sent >= number);
        if let Some(left) = left {
            let free_at = now + (left + Duration::from_millis(1)).max(SHORTEST_PAUSE);
            standing.beat_at = standing.beat_at.min(free_at);
        }
    }

    /// Its next heartbeat is due at once.
    pub(super) fn beat_now(&self, now: Moment) {
        self.standing.lock().beat_at = now;
    }

    pub(super) fn wake(&self, turn: Turn) {
        let mut standing = self.standing.lock();
        // A grant is not forgotten for a rumour.
        if !matches!(standing.turn, Some(Turn::Granted(_))) {
            standing.turn = Some(turn);
        }
        drop(standing);
        self.bell.notify_one();
    }

    /// Waits for its turn.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a turn that came meanwhile stays for the next who waits.
    pub(super) async fn turn(&self, waiters: &Waiters) -> Turn {
        let _attending = Attending::new(self, waiters);
        loop {
            if let Some(turn) = self.standing.lock().turn.take() {
                return turn;
            }
            // A ring between the look and this line is kept by the bell.
            self.bell.notified().await;
        }
    }
}

/// While it lives, its waiter's heart beats.
struct Attending<'a>(&'a Waiter);

impl<'a> Attending<'a> {
    fn new(waiter: &'a Waiter, waiters: &Waiters) -> Self {
        let mut standing = waiter.standing.lock();
        standing.attended += 1;
        let beat_at = standing.beat_at;
        drop(standing);
        if beat_at.as_nanos() < waiters.looks_at.load(Ordering::SeqCst) {
            waiters.due_changed.notify_one();
        }
        Self(waiter)
    }
}

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.standing.lock().attended -= 1;
    }
}

fn pause(claim: &Claim) -> Duration {
    (claim.ttl / 3).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
}

/// What a script sends to a client.
#[derive(Debug, PartialEq, Eq)]
enum Message {
    Granted { owner: Owner, token: Token, number: u64, term: Duration },
    AskAgain { owner: Owner },
    Forced { owner: Owner },
}

impl Message {
    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        let (kind, owner) = (words.next()?, words.next()?.parse().ok()?);
        Some(match kind {
            "g" => Self::Granted {
                owner,
                token: Token::new(words.next()?.parse().ok()?),
                number: words.next()?.parse().ok()?,
                term: Duration::from_millis(words.next()?.parse().ok()?),
            },
            "a" => Self::AskAgain { owner },
            "f" => Self::Forced { owner },
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::holder::Holder;
    use crate::name::Name;

    fn claim() -> Claim {
        let holder = Arc::new(Holder::this_process());
        let name = Name::new("a").unwrap();
        Claim { queue: true, ..Claim::new(name, Duration::from_secs(9), holder) }
    }

    fn waiters() -> Arc<Waiters> {
        Waiters::new(Clock::manual(Arc::new(ManualClock::new())))
    }

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(seconds * 1_000_000_000)
    }

    /// The message may overtake the answer: redisson#1763 slept on.
    #[tokio::test]
    async fn a_grant_before_the_answer_is_kept_and_counts_from_its_number() {
        let (waiters, claim) = (waiters(), claim());
        let mut registered = waiters.register([&claim].into_iter(), 4, at(1));
        waiters.heard(format!("g {} 77 4 3000", claim.owner).as_bytes());
        registered.keep(claim.owner);
        drop(registered);
        let waiter = waiters.get(claim.owner).unwrap();
        waiter.sending(5, at(2));
        let proof = Proof { at: at(1), valid_for: Duration::from_secs(3) };
        let turn = waiter.turn(&waiters).await;
        assert_eq!(turn, Turn::Granted(Grant { token: Token::new(77), proof }));
    }

    #[tokio::test]
    async fn a_grant_that_names_no_known_number_proves_nothing() {
        let (waiters, claim) = (waiters(), claim());
        waiters.register([&claim].into_iter(), 4, at(1)).keep(claim.owner);
        let waiter = waiters.get(claim.owner).unwrap();
        waiter.sending(9, at(2));
        waiter.seen(9, at(2), None);
        waiters.heard(format!("g {} 77 4 3000", claim.owner).as_bytes());
        assert_eq!(waiter.turn(&waiters).await, Turn::TryAgain);
    }

    #[test]
    fn a_claim_that_gets_no_place_is_forgotten() {
        let (waiters, claim) = (waiters(), claim());
        drop(waiters.register([&claim].into_iter(), 0, at(1)));
        assert!(waiters.get(claim.owner).is_none());
    }

    #[test]
    fn strange_messages_are_ignored() {
        for text in ["", "g", "g x 1 2 3", "z 0 1", "g 0 1 2", "a"] {
            assert_eq!(Message::parse(text), None, "{text:?}");
        }
    }
}
