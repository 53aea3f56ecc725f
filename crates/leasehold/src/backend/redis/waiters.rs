//! The claims of this client that wait in queues at the store.
//!
//! A waiter is registered before its claim is sent, because the message of its grant may
//! overtake the answer to the claim. Claims and heartbeats are numbered; a grant names the
//! last number that the store had seen, and its deadline counts from when that was sent.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::backend::kit::hints::Hints;
use crate::backend::kit::owner_map::OwnerMap;
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
/// The most unanswered numbers of one waiter.
const NUMBERS: usize = 64;

/// What a waiter without an answer tells scripts: it may be in the queue, and is looked for.
const NOTHING_KNOWN: &str = "0 0";

/// All waiters of a client.
#[derive(Debug)]
pub(crate) struct Waiters {
    clock: Clock,
    table: Mutex<OwnerMap<Arc<Waiter>>>,
    /// Never used twice and never zero, so that a grant cannot name the wrong one.
    numbers: AtomicU64,
    /// Wakes the task: a heartbeat may be due earlier than before.
    due_changed: Notify,
    /// When the task of the heartbeats looks next, in nanoseconds: only waiters that are due
    /// earlier wake it.
    looks_at: AtomicU64,
    pub(crate) hints: Hints,
}

/// A claim in a queue.
#[derive(Debug)]
pub(super) struct Waiter {
    pub(super) claim: Claim,
    bell: Notify,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// What was sent, and when.
    sent: VecDeque<(u64, Moment)>,
    /// What the store answered last: when it saw us, and with which number.
    said: String,
    turn: Option<Turn>,
    /// The number that the last grant named.
    granted: u64,
    /// How many futures wait on it: without one its place lapses.
    attended: usize,
    heartbeat_at: Moment,
    /// A heartbeat is under way: the next one waits for its end.
    in_heartbeat: bool,
}

/// Claims that are just being sent. Those that get no place are forgotten; without an answer
/// only those that had none before.
pub(super) struct Registered<'a> {
    waiters: &'a Waiters,
    /// Whether each stays as it is.
    owners: Vec<(Owner, bool)>,
}

impl Waiters {
    pub(crate) fn new(clock: Clock) -> Arc<Self> {
        Arc::new(Self {
            clock,
            table: Mutex::default(),
            numbers: AtomicU64::new(1),
            due_changed: Notify::new(),
            looks_at: AtomicU64::new(Moment::NEVER.as_nanos()),
            hints: Hints::default(),
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
            owners.push((claim.owner, table.contains_key(&claim.owner)));
            let waiter = table.entry(claim.owner).or_insert_with(|| Waiter::new(claim.clone()));
            waiter.asks(number, at);
        }
        drop(table);
        Registered { waiters: self, owners }
    }

    /// What the store said last to this owner, as scripts want it: nothing if it never was in
    /// the queue.
    pub(super) fn said(&self, owner: Owner) -> String {
        self.get(owner).map_or_else(String::new, |waiter| waiter.said())
    }

    pub(super) fn get(&self, owner: Owner) -> Option<Arc<Waiter>> {
        self.table.lock().get(&owner).cloned()
    }

    pub(super) fn forget(&self, owner: Owner) {
        self.table.lock().remove(&owner);
    }

    /// A message of the store.
    pub(crate) fn heard(&self, message: &[u8]) {
        if std::str::from_utf8(message).ok().and_then(|message| self.dispatch(message)).is_none() {
            tracing::debug!("a message that no script of ours sends");
        }
    }

    /// Passes a message on. `None` if no script of ours sends it.
    fn dispatch(&self, message: &str) -> Option<()> {
        let mut words = message.split(' ');
        let (kind, owner) = (words.next()?, words.next()?.parse().ok()?);
        let mut number = || words.next()?.parse::<u64>().ok();
        let waiter = self.get(owner);
        match (kind, &waiter) {
            ("g", _) => {
                let (token, number, term) = (Token::new(number()?), number()?, number()?);
                let term = Duration::from_millis(term);
                // A number that is not known any more proves nothing: ask.
                if let Some(waiter) = &waiter
                    && !waiter.pushed(token, number, term)
                {
                    waiter.ask_again();
                }
            }
            ("a", Some(waiter)) => waiter.ask_again(),
            ("a", None) => {}
            ("f", _) => self.hints.announce(Hint::Lease(owner)),
            _ => return None,
        }
        Some(())
    }

    /// A connection ended. Messages may be lost, so all heartbeats are due.
    pub(super) fn disconnected(&self) {
        let now = self.clock.now();
        for waiter in self.table.lock().values() {
            waiter.state.lock().heartbeat_at = now;
        }
        self.due_changed.notify_one();
    }

    /// There is a connection again, perhaps to a server that remembers less.
    pub(super) fn reconnected(&self) {
        self.hints.announce(Hint::All);
        self.disconnected();
    }

    /// Waits until a heartbeat may be due: until this moment, or a wake.
    pub(super) async fn until_due(&self, next: Moment) {
        // An earlier wake is kept by `due_changed`; later waiters compare with this.
        self.looks_at.store(next.as_nanos(), Ordering::SeqCst);
        tokio::select! {
            () = self.due_changed.notified() => {}
            () = self.clock.sleep_until(next) => {}
        }
    }

    /// Whose heartbeat is due, and when the next one is. Those who are due have it
    /// [`heartbeat_over`](Waiter::heartbeat_over) before they are due again.
    pub(super) fn due(&self, now: Moment) -> (Vec<Arc<Waiter>>, Moment) {
        // Until the look is over every waiter wakes the task.
        self.looks_at.store(Moment::NEVER.as_nanos(), Ordering::SeqCst);
        let mut due = Vec::new();
        let mut next = Moment::NEVER;
        let mut earliest = Moment::NEVER;
        let table = self.table.lock();
        for waiter in table.values() {
            let state = waiter.state.lock();
            if state.attended == 0 || state.turn.is_some() || state.in_heartbeat {
                continue;
            }
            earliest = earliest.min(state.heartbeat_at);
            if state.heartbeat_at <= now + TOGETHER {
                due.push(waiter.clone());
            } else {
                next = next.min(state.heartbeat_at);
            }
        }
        if earliest > now {
            return (Vec::new(), earliest);
        }
        for waiter in &due {
            waiter.state.lock().in_heartbeat = true;
        }
        (due, next)
    }
}

impl Registered<'_> {
    /// There is an answer to all of them.
    pub(super) fn answered(&mut self) {
        self.owners.iter_mut().for_each(|(_, stays)| *stays = false);
    }

    /// This claim has its place.
    pub(super) fn keep(&mut self, owner: Owner) {
        self.owners.retain(|(registered, _)| *registered != owner);
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if !self.owners.is_empty() {
            let mut table = self.waiters.table.lock();
            self.owners.iter().filter(|(_, stays)| !stays).for_each(|(owner, _)| {
                table.remove(owner);
            });
        }
    }
}

impl Waiter {
    fn new(claim: Claim) -> Arc<Self> {
        let state = State {
            sent: VecDeque::new(),
            said: NOTHING_KNOWN.to_owned(),
            turn: None,
            granted: 0,
            attended: 0,
            heartbeat_at: Moment::NEVER,
            in_heartbeat: false,
        };
        Arc::new(Self { claim, bell: Notify::new(), state: Mutex::new(state) })
    }

    /// A claim leaves now, under this number: that is what it was told to do.
    fn asks(&self, number: u64, at: Moment) {
        self.sending(number, at);
        self.state.lock().turn.take_if(|turn| *turn == Turn::TryAgain);
    }

    /// A claim or heartbeat leaves now, under this number.
    pub(super) fn sending(&self, number: u64, at: Moment) {
        let mut state = self.state.lock();
        state.sent.push_back((number, at));
        if state.sent.len() > NUMBERS {
            state.sent.pop_front();
        }
        state.heartbeat_at = at + pause(&self.claim);
    }

    /// The store has seen this number, at that time of its own clock: no grant names an earlier
    /// one. The lock may be free by itself after `left`, which the first in the queue looks after.
    pub(super) fn seen(&self, seen: &str, number: u64, now: Moment, left: Option<Duration>) {
        let mut state = self.state.lock();
        state.said = format!("{seen} {number}");
        // What it was told before, it is not any more: it is in the queue (again).
        if matches!(state.turn, Some(Turn::Granted(_))) && state.granted < number {
            state.turn = None;
        }
        state.sent.retain(|(sent, _)| *sent >= number);
        if let Some(left) = left {
            let free_at = now + (left + Duration::from_millis(1)).max(SHORTEST_PAUSE);
            state.heartbeat_at = state.heartbeat_at.min(free_at);
        }
    }

    /// What the store said last, as scripts want it.
    pub(super) fn said(&self) -> String {
        self.state.lock().said.clone()
    }

    /// Its next heartbeat is due at once.
    pub(super) fn heartbeat_now(&self, now: Moment) {
        self.state.lock().heartbeat_at = now;
    }

    /// Its heartbeat is over, with or without an answer.
    pub(super) fn heartbeat_over(&self) {
        self.state.lock().in_heartbeat = false;
    }

    /// A message: it has the lock, as of the request with this number. Whether that is known.
    fn pushed(&self, token: Token, number: u64, term: Duration) -> bool {
        let mut state = self.state.lock();
        let sent = state.sent.iter().find(|(sent, _)| *sent == number);
        let Some(&(_, at)) = sent else { return false };
        state.grant(Grant { token, proof: Proof { at, valid_for: term } }, number);
        drop(state);
        self.bell.notify_one();
        true
    }

    /// An answer: it has the lock, as of the request with this number.
    pub(super) fn granted(&self, grant: Grant, number: u64) {
        self.state.lock().grant(grant, number);
        self.bell.notify_one();
    }

    /// Whoever waits on it should ask the store.
    pub(super) fn ask_again(&self) {
        let mut state = self.state.lock();
        // A grant is not forgotten for a rumour.
        state.turn.get_or_insert(Turn::TryAgain);
        drop(state);
        self.bell.notify_one();
    }

    /// Waits for its turn.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost: a turn that came meanwhile stays for the next who waits.
    pub(super) async fn turn(&self, waiters: &Waiters) -> Turn {
        let heartbeat_at = {
            let mut state = self.state.lock();
            state.attended += 1;
            state.heartbeat_at
        };
        let _attending = Attending(self);
        if heartbeat_at.as_nanos() < waiters.looks_at.load(Ordering::SeqCst) {
            waiters.due_changed.notify_one();
        }
        loop {
            if let Some(turn) = self.state.lock().turn.take() {
                return turn;
            }
            // The bell keeps a ring that comes between the look and this.
            self.bell.notified().await;
        }
    }
}

impl State {
    /// What an older request got is no news.
    fn grant(&mut self, grant: Grant, number: u64) {
        if number >= self.granted {
            self.turn = Some(Turn::Granted(grant));
            self.granted = number;
        }
    }
}

/// While it lives, its waiter's heartbeats are sent.
struct Attending<'a>(&'a Waiter);

impl Drop for Attending<'_> {
    fn drop(&mut self) {
        self.0.state.lock().attended -= 1;
    }
}

fn pause(claim: &Claim) -> Duration {
    (claim.ttl / 3).clamp(SHORTEST_PAUSE, LONGEST_PAUSE)
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
        waiter.seen("17", 9, at(2), None);
        waiters.heard(format!("g {} 77 4 3000", claim.owner).as_bytes());
        assert_eq!(waiter.turn(&waiters).await, Turn::TryAgain);
    }

    #[test]
    fn a_claim_that_gets_no_place_is_forgotten() {
        let (waiters, claim) = (waiters(), claim());
        drop(waiters.register([&claim].into_iter(), 1, at(1)));
        assert!(waiters.get(claim.owner).is_none());
        waiters.register([&claim].into_iter(), 2, at(1)).keep(claim.owner);
        // Asked again: without an answer it may still be in the queue, and is looked for.
        drop(waiters.register([&claim].into_iter(), 3, at(2)));
        assert_eq!(waiters.said(claim.owner), NOTHING_KNOWN);
        waiters.register([&claim].into_iter(), 4, at(3)).answered();
        assert_eq!(waiters.said(claim.owner), "");
    }

    /// Granted, asked again before it knew, and told that it waits: that grant is over.
    #[tokio::test]
    async fn an_answer_ends_what_was_granted_before() {
        let (waiters, claim) = (waiters(), claim());
        waiters.register([&claim].into_iter(), 4, at(1)).keep(claim.owner);
        let waiter = waiters.get(claim.owner).unwrap();
        waiters.heard(format!("g {} 77 4 3000", claim.owner).as_bytes());
        waiters.register([&claim].into_iter(), 5, at(2)).keep(claim.owner);
        waiter.seen("17", 5, at(2), None);
        assert_eq!(waiters.said(claim.owner), "17 5");
        waiters.heard(format!("g {} 78 5 3000", claim.owner).as_bytes());
        let turn = waiter.turn(&waiters).await;
        assert!(matches!(turn, Turn::Granted(Grant { token, .. }) if token == Token::new(78)));
    }

    #[test]
    fn strange_messages_are_ignored() {
        for text in ["", "g", "g x 1 2 3", "z 0 1", "g 0 1 2", "a"] {
            assert_eq!(waiters().dispatch(text), None, "{text:?}");
        }
    }
}
