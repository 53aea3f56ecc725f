//! When the keeper looks at which lease next: buckets of milliseconds, so that what
//! is due together is renewed together, and each lease costs one entry.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::clock::Moment;
use crate::lease::Tenure;

/// A lease's place with the keeper, until it is removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place(u32);

#[derive(Debug, Default)]
pub(super) struct Schedule {
    entries: Slab<Entry>,
    buckets: BTreeMap<u64, Vec<u32>>,
    /// How many leases there are of each TTL.
    ttls: BTreeMap<Duration, usize>,
}

#[derive(Debug)]
pub(super) struct Entry {
    pub(super) tenure: Arc<Tenure>,
    pub(super) renew_at: Moment,
    /// The bucket it waits in, and where; `None` while the keeper has it in hand.
    waits_in: Option<(u64, u32)>,
}

impl Schedule {
    pub(super) fn insert(
        &mut self,
        tenure: Arc<Tenure>,
        renew_at: Moment,
        look_at: Moment,
    ) -> Place {
        *self.ttls.entry(tenure.ttl()).or_default() += 1;
        let key = self.entries.insert(Entry { tenure, renew_at, waits_in: None });
        let place = Place(u32::try_from(key).unwrap_or(u32::MAX));
        self.look_at(place, look_at);
        place
    }

    /// Removes a lease; nothing if the place is already another's.
    pub(super) fn remove(&mut self, place: Place, tenure: &Arc<Tenure>) {
        if self.get_mut(place, tenure).is_none() {
            return;
        }
        self.take_out(place);
        let Some(entry) = self.entries.try_remove(place.0 as usize) else { return };
        let ttl = entry.tenure.ttl();
        if let Some(count) = self.ttls.get_mut(&ttl) {
            *count -= 1;
            if *count == 0 {
                self.ttls.remove(&ttl);
            }
        }
    }

    /// The lease at this place, if it is still this one.
    pub(super) fn get_mut(&mut self, place: Place, tenure: &Arc<Tenure>) -> Option<&mut Entry> {
        let entry = self.entries.get_mut(place.0 as usize)?;
        Arc::ptr_eq(&entry.tenure, tenure).then_some(entry)
    }

    /// Puts the lease where it is found at `moment`, instead of where it was.
    pub(super) fn look_at(&mut self, place: Place, moment: Moment) {
        self.take_out(place);
        if moment == Moment::NEVER {
            return;
        }
        let Some(entry) = self.entries.get_mut(place.0 as usize) else { return };
        let bucket = self.buckets.entry(moment.as_millis()).or_default();
        entry.waits_in = Some((moment.as_millis(), bucket.len() as u32));
        bucket.push(place.0);
    }

    /// The shortest TTL of all leases, if there are any.
    pub(super) fn shortest_ttl(&self) -> Option<Duration> {
        self.ttls.keys().next().copied()
    }

    /// When something is due next.
    pub(super) fn next(&self) -> Moment {
        let bucket = self.buckets.first_key_value();
        bucket.map_or(Moment::NEVER, |(millis, _)| Moment::from_nanos(millis * 1_000_000))
    }

    /// Takes out what is due, but at most this many.
    pub(super) fn take_due(&mut self, now: Moment, most: usize) -> Vec<Place> {
        let mut due = Vec::new();
        while due.len() < most
            && let Some(mut bucket) = self.buckets.first_entry()
            && *bucket.key() <= now.as_millis()
        {
            // From the end: the places of the others stay what they are.
            let keep = bucket.get().len().saturating_sub(most - due.len());
            for key in bucket.get_mut().split_off(keep) {
                if let Some(entry) = self.entries.get_mut(key as usize) {
                    entry.waits_in = None;
                    due.push(Place(key));
                }
            }
            if keep == 0 {
                bucket.remove();
            }
        }
        due
    }

    pub(super) fn entry(&self, place: Place) -> Option<&Entry> {
        self.entries.get(place.0 as usize)
    }

    pub(super) fn places(&self) -> impl Iterator<Item = (Place, &Entry)> {
        self.entries.iter().map(|(key, entry)| (Place(key as u32), entry))
    }

    fn take_out(&mut self, place: Place) {
        let entry = self.entries.get_mut(place.0 as usize);
        let Some((millis, index)) = entry.and_then(|entry| entry.waits_in.take()) else { return };
        let Some(bucket) = self.buckets.get_mut(&millis) else { return };
        bucket.swap_remove(index as usize);
        if let Some(moved) = bucket.get(index as usize) {
            if let Some(entry) = self.entries.get_mut(*moved as usize) {
                entry.waits_in = Some((millis, index));
            }
        } else if bucket.is_empty() {
            self.buckets.remove(&millis);
        }
    }
}
