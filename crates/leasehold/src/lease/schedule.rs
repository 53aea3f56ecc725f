//! When the keeper looks at which lease next: buckets of milliseconds, so that what
//! is due together is renewed together, and each lease costs one entry.

use std::collections::{BTreeMap, btree_map};
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::clock::Moment;
use crate::lease::state::LeaseCore;

/// How many buckets are kept that no lease waits in any more, and how many TTLs that none
/// has: the next one often is like the last.
const MOST_EMPTY: usize = 16;

/// A lease's place with the keeper, until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u32);

#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: Slab<Entry>,
    buckets: BTreeMap<u64, Vec<u32>>,
    flights: BTreeMap<Flight, Vec<Place>>,
    departures: u64,
    /// How many buckets are empty: a few are kept, for the next lease that is due then.
    empty_buckets: usize,
    /// How many leases there are of each TTL.
    ttls: BTreeMap<Duration, usize>,
}

/// Leases that the store is asked about together. While they are, they are watched as
/// one: most answers come long before the first of their deadlines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Flight {
    first_deadline: Moment,
    number: u64,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) core: Arc<LeaseCore>,
    pub(super) renew_at: Moment,
    /// The bucket it waits in, as the how many-th; `None` while the keeper has it in hand, and in
    /// flight.
    waits_in: Option<(u64, NonZero<u32>)>,
}

impl Schedule {
    pub(super) fn insert(
        &mut self,
        core: Arc<LeaseCore>,
        renew_at: Moment,
        look_at: Moment,
    ) -> Place {
        *self.ttls.entry(core.ttl()).or_default() += 1;
        let key = self.entries.insert(Entry { core, renew_at, waits_in: None });
        let place = Place(u32::try_from(key).unwrap_or(u32::MAX));
        self.look_at(place, look_at);
        place
    }

    /// Removes a lease; nothing if the place is already another's.
    pub(super) fn remove(&mut self, place: Place, core: &Arc<LeaseCore>) {
        if self.get_mut(place, core).is_none() {
            return;
        }
        self.take_out(place);
        let Some(entry) = self.entries.try_remove(place.0 as usize) else { return };
        let ttl = entry.core.ttl();
        if let Some(count) = self.ttls.get_mut(&ttl) {
            *count -= 1;
            // Kept for the next lease like it, while there are few.
            if *count == 0 && self.ttls.len() > MOST_EMPTY {
                self.ttls.remove(&ttl);
            }
        }
    }

    /// The lease at this place, if it is still this one.
    pub(super) fn get_mut(&mut self, place: Place, core: &Arc<LeaseCore>) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(place.0 as usize)?;
        Arc::ptr_eq(&entry.core, core).then_some(entry)
    }

    /// Puts the lease where it is found at `moment`, instead of where it was.
    pub(super) fn look_at(&mut self, place: Place, moment: Moment) {
        self.take_out(place);
        if moment == Moment::NEVER {
            return;
        }
        let Some(entry) = self.entries.get_mut(place.0 as usize) else { return };
        let millis = moment.as_millis();
        let bucket = self.buckets.entry(millis);
        if let btree_map::Entry::Occupied(bucket) = &bucket {
            self.empty_buckets -= usize::from(bucket.get().is_empty());
        }
        let bucket = bucket.or_default();
        bucket.push(place.0);
        entry.waits_in = NonZero::new(bucket.len() as u32).map(|nth| (millis, nth));
    }

    /// The shortest TTL of all leases, if there are any.
    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        self.ttls.iter().find(|(_, count)| **count > 0).map(|(ttl, _)| *ttl)
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Moment {
        let bucket = self.buckets.first_key_value();
        let bucket =
            bucket.map_or(Moment::NEVER, |(millis, _)| Moment::from_nanos(millis * 1_000_000));
        self.flights
            .first_key_value()
            .map_or(bucket, |(flight, _)| bucket.min(flight.first_deadline))
    }

    /// The store is asked about these, the first of which is over then.
    pub(super) fn depart(&mut self, places: Vec<Place>, first_deadline: Moment) -> Flight {
        self.departures += 1;
        let flight = Flight { first_deadline, number: self.departures };
        self.flights.insert(flight, places);
        flight
    }

    /// The store has been asked. Who was not told when it is looked at next is looked at
    /// when it is over.
    pub(super) fn land(&mut self, flight: Flight) {
        for place in self.flights.remove(&flight).unwrap_or_default() {
            if let Some(entry) = self.entry(place)
                && entry.waits_in.is_none()
            {
                let deadline = entry.core.deadline();
                self.look_at(place, deadline);
            }
        }
    }

    /// Takes out what is due, but at most this many.
    pub(super) fn take_due(&mut self, now: Moment, most: usize) -> Vec<Place> {
        while let Some((&overdue, _)) = self.flights.first_key_value()
            && overdue.first_deadline <= now
        {
            self.land(overdue);
        }
        let mut due = Vec::new();
        while due.len() < most
            && let Some(mut bucket) = self.buckets.first_entry()
            && *bucket.key() <= now.as_millis()
        {
            let was_empty = bucket.get().is_empty();
            // From the end: the places of the others stay what they are.
            let keep = bucket.get().len().saturating_sub(most - due.len());
            for key in bucket.get_mut().split_off(keep) {
                if let Some(entry) = self.entries.get_mut(key as usize) {
                    entry.waits_in = None;
                    due.push(Place(key));
                }
            }
            if keep == 0 {
                self.empty_buckets -= usize::from(was_empty);
                bucket.remove();
            }
        }
        due
    }

    pub(super) fn entry_mut(&mut self, place: Place) -> Option<&mut Entry> {
        self.entries.get_mut(place.0 as usize)
    }

    fn entry(&self, place: Place) -> Option<&Entry> {
        self.entries.get(place.0 as usize)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.entries.iter().map(|(key, entry)| (Place(key as u32), entry))
    }

    /// At most so many of all places from the `from`-th on; `None` if there are none so far.
    pub(super) fn portion(
        &self,
        from: usize,
        most: usize,
    ) -> Option<impl Iterator<Item = (Place, &Entry)>> {
        let keys = from..self.entries.capacity().min(from + most);
        let place = |key| Some((Place(key as u32), self.entries.get(key)?));
        (!keys.is_empty()).then(|| keys.filter_map(place))
    }

    fn take_out(&mut self, place: Place) {
        let entry = self.entries.get_mut(place.0 as usize);
        let Some((millis, nth)) = entry.and_then(|entry| entry.waits_in.take()) else { return };
        let Some(bucket) = self.buckets.get_mut(&millis) else { return };
        let index = nth.get() as usize - 1;
        bucket.swap_remove(index);
        if let Some(moved) = bucket.get(index) {
            if let Some(entry) = self.entries.get_mut(*moved as usize) {
                entry.waits_in = Some((millis, nth));
            }
        } else if bucket.is_empty() {
            if self.empty_buckets == MOST_EMPTY {
                self.buckets.remove(&millis);
            } else {
                self.empty_buckets += 1;
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::backend::memory::MemoryStore;
    use crate::callers::seeds;
    use crate::clock::{Clock, ManualClock};
    use crate::context::Context;

    /// What a schedule should say, by looking at every lease.
    #[derive(Default)]
    struct Expected {
        leases: HashMap<u32, Lease>,
        flights: Vec<(Flight, Vec<Place>)>,
    }

    struct Lease {
        core: Arc<LeaseCore>,
        waits_until: Option<u64>,
    }

    impl Expected {
        fn land(&mut self, places: &[Place]) {
            for place in places {
                if let Some(lease) = self.leases.get_mut(&place.0) {
                    lease.waits_until.get_or_insert(lease.core.deadline().as_millis());
                }
            }
        }

        fn land_what_is_overdue(&mut self, now: Moment) {
            let all = std::mem::take(&mut self.flights).into_iter();
            let (overdue, rest) = all.partition(|(flight, _)| flight.first_deadline <= now);
            self.flights = rest;
            let overdue: Vec<(Flight, Vec<Place>)> = overdue;
            overdue.iter().for_each(|(_, places)| self.land(places));
        }

        fn first(&self) -> Moment {
            let waiting = self.leases.values().filter_map(|lease| lease.waits_until);
            let waiting = waiting.map(|millis| Moment::from_nanos(millis * 1_000_000));
            let flights = self.flights.iter().map(|(flight, _)| flight.first_deadline);
            waiting.chain(flights).min().unwrap_or(Moment::NEVER)
        }

        fn check(&self, schedule: &Schedule, seed: u64) {
            let empty = schedule.buckets.values().filter(|bucket| bucket.is_empty()).count();
            assert_eq!(schedule.empty_buckets, empty, "seed {seed}");
            assert!(empty <= MOST_EMPTY, "seed {seed}: {empty} empty buckets");
            let unused = schedule.ttls.values().filter(|count| **count == 0).count();
            assert!(unused <= MOST_EMPTY, "seed {seed}: {unused} TTLs of no lease");
            let shortest = self.leases.values().map(|lease| lease.core.ttl()).min();
            assert_eq!(schedule.shortest_ttl(), shortest, "seed {seed}");
            // For an empty bucket it may be looked in vain.
            let next = schedule.next();
            let in_vain = schedule.buckets.first_key_value().is_some_and(|(_, all)| all.is_empty());
            assert!(
                next == self.first() || in_vain && next < self.first(),
                "seed {seed}: {next:?}"
            );
        }
    }

    /// Whatever is put, moved, removed, taken and landed when: each lease is found when it is
    /// due, once, and nothing is kept for those that are gone.
    #[tokio::test]
    async fn every_lease_is_found_when_it_is_due() {
        for seed in seeds() {
            let mut dice = fastrand::Rng::with_seed(seed);
            let hand = Arc::new(ManualClock::new());
            let clock = Clock::manual(hand.clone());
            let context = Context::of_a_part(MemoryStore::new(clock.clone()));
            let (mut schedule, mut expected) = (Schedule::default(), Expected::default());
            let mut in_hand = Vec::new();
            let mut gone = Vec::new();
            for _ in 0..400 {
                let now = clock.now();
                let soon = |dice: &mut fastrand::Rng| match dice.u8(..8) {
                    0 => Moment::NEVER,
                    _ => now + Duration::from_micros(dice.u64(..100_000)),
                };
                let millis = |at: Moment| (at != Moment::NEVER).then(|| at.as_millis());
                let mut known: Vec<u32> = expected.leases.keys().copied().collect();
                known.sort_unstable();
                let any = dice.choice(&known).copied();
                match (dice.u8(..10), any) {
                    (0..3, _) => {
                        let ttl = Duration::from_millis(100 + dice.u64(..40));
                        let core = Arc::new(LeaseCore::for_as_long_as(&context, ttl));
                        let look_at = soon(&mut dice);
                        let place = schedule.insert(core.clone(), look_at, look_at);
                        let lease = Lease { core, waits_until: millis(look_at) };
                        assert!(expected.leases.insert(place.0, lease).is_none());
                    }
                    (3, Some(key)) => {
                        let core = expected.leases.remove(&key).unwrap().core;
                        schedule.remove(Place(key), &core);
                        gone.push((Place(key), core));
                    }
                    (4, _) => {
                        // Said twice: the place may be another's by now.
                        if let Some((place, core)) = dice.choice(&gone) {
                            assert!(schedule.get_mut(*place, core).is_none());
                            schedule.remove(*place, core);
                        }
                    }
                    (5, Some(key)) => {
                        let look_at = soon(&mut dice);
                        schedule.look_at(Place(key), look_at);
                        let lease = expected.leases.get_mut(&key).unwrap();
                        lease.waits_until = millis(look_at);
                    }
                    (6, _) if !in_hand.is_empty() => {
                        let places = std::mem::take(&mut in_hand);
                        let flight = schedule.depart(places.clone(), soon(&mut dice));
                        expected.flights.push((flight, places));
                    }
                    (7, _) if !expected.flights.is_empty() => {
                        let (flight, places) =
                            expected.flights.swap_remove(dice.usize(..expected.flights.len()));
                        schedule.land(flight);
                        expected.land(&places);
                    }
                    _ => {
                        hand.advance(Duration::from_micros(dice.u64(..20_000)));
                        let (now, most) = (clock.now(), dice.usize(1..6));
                        expected.land_what_is_overdue(now);
                        let due = schedule.take_due(now, most);
                        let is_due = |lease: &Lease| {
                            lease.waits_until.is_some_and(|millis| millis <= now.as_millis())
                        };
                        let all = expected.leases.values().filter(|lease| is_due(lease)).count();
                        assert_eq!(due.len(), all.min(most), "seed {seed}");
                        for place in due {
                            let lease = expected.leases.get_mut(&place.0).unwrap();
                            assert!(is_due(lease), "seed {seed}: too early, or twice");
                            lease.waits_until = None;
                            in_hand.push(place);
                        }
                    }
                }
                expected.check(&schedule, seed);
            }
            for (key, lease) in expected.leases.drain() {
                schedule.remove(Place(key), &lease.core);
            }
            assert!(schedule.entries.is_empty() && schedule.shortest_ttl().is_none());
            hand.advance(Duration::from_secs(1));
            assert!(schedule.take_due(clock.now(), usize::MAX).is_empty());
            assert!(schedule.buckets.is_empty() && schedule.empty_buckets == 0, "seed {seed}");
        }
    }
}
