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
