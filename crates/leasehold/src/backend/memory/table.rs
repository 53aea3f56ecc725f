//! Records by name. A hash table is up to half empty after it has grown, so what it keeps
//! for each name is small, and the records are in a list of their own that is not.

use std::collections::hash_map::Entry;

use slab::Slab;

use crate::name::{Name, NameMap};

#[derive(Debug)]
pub(super) struct Table<R> {
    places: NameMap<usize>,
    records: Slab<R>,
}

impl<R> Default for Table<R> {
    fn default() -> Self {
        Self { places: NameMap::default(), records: Slab::new() }
    }
}

impl<R: Default> Table<R> {
    pub(super) fn len(&self) -> usize {
        self.places.len()
    }

    pub(super) fn get(&self, name: &Name) -> Option<&R> {
        self.places.get(name).and_then(|place| self.records.get(*place))
    }

    pub(super) fn get_mut(&mut self, name: &Name) -> Option<&mut R> {
        self.places.get(name).and_then(|place| self.records.get_mut(*place))
    }

    pub(super) fn get_or_default(&mut self, name: &Name) -> &mut R {
        let Self { places, records } = self;
        let place = places.entry(name.clone()).or_insert_with(|| records.insert(R::default()));
        &mut records[*place]
    }

    /// Changes the record of a name, which is forgotten if it is `idle` then; `None` if
    /// there is none.
    pub(super) fn change<T>(
        &mut self,
        name: Name,
        idle: impl FnOnce(&R) -> bool,
        change: impl FnOnce(&mut R) -> T,
    ) -> Option<T> {
        let Entry::Occupied(place) = self.places.entry(name) else { return None };
        let record = self.records.get_mut(*place.get())?;
        let changed = change(record);
        if idle(record) {
            self.records.remove(place.remove());
        }
        Some(changed)
    }

    /// Forgets the records that are not worth keeping.
    pub(super) fn retain(&mut self, keep: impl Fn(&R) -> bool) {
        let Self { places, records } = self;
        places.retain(|_, place| {
            let kept = records.get(*place).is_some_and(&keep);
            if !kept {
                records.try_remove(*place);
            }
            kept
        });
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.places.keys()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forgets_what_is_idle_and_keeps_the_others() {
        let name = |text: &str| Name::new(text).unwrap();
        let mut table = Table::<u32>::default();
        for (number, text) in (1..).zip(["a", "b", "c", "d"]) {
            *table.get_or_default(&name(text)) += number;
        }
        assert_eq!(table.change(name("b"), |b| *b == 0, std::mem::take), Some(2));
        assert_eq!(table.change(name("c"), |c| *c == 0, |c| *c), Some(3));
        assert_eq!(table.change(name("x"), |x| *x == 0, |x| *x), None);
        table.retain(|record| *record != 4);
        *table.get_or_default(&name("e")) += 5;
        let mut names: Vec<_> = table.names().map(Name::as_str).collect();
        names.sort_unstable();
        assert_eq!((names, table.len()), (vec!["a", "c", "e"], 3));
        assert_eq!(table.get(&name("c")), Some(&3));
        assert_eq!(table.get_mut(&name("e")), Some(&mut 5));
        assert_eq!(table.get(&name("d")), None);
    }
}
