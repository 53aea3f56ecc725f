//! The ledger of a session store: what this client asked for, waits for and holds.
//!
//! A session outlives the leases in it, so nothing at the server ends a claim that nobody
//! wants any more. Whatever a claim puts there is entered here first. The store's janitor
//! ends the entries that are [overdue](Ledger::overdue), and deletes what a session has at
//! the server and no entry accounts for: the trace of a request that arrived late.
//!
//! The ledger proves nothing. Only the server's answer does.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

use super::owner_map::OwnerMap;
use super::tombstone::Tombstones;
use crate::backend::Hold;
use crate::clock::Moment;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

/// The longest time in which an entry is not looked at, so that little of what was removed
/// is still queued to be looked at.
const LOOK: Duration = Duration::from_secs(10);

/// How many void looks are of no account.
const FEW: usize = 64;

/// What a store keeps of a claim.
pub(in crate::backend) trait Entry {
    /// The lock.
    fn name(&self) -> &Name;

    /// The token of its lease, or of its place in the queue where that will be it.
    fn token(&self) -> Option<Token>;

    /// When nobody wants it any more unless something happens until then: a holder renews,
    /// a waiter waits. `Moment::NEVER` for as long as somebody waits on it.
    fn until(&self) -> Moment;
}

#[derive(Debug)]
struct Row<E> {
    entry: E,
    /// When to look at it next. An item of `looks` with another time is void.
    look: Moment,
}

/// The entries by owner, and the owners that have a tombstone.
#[derive(Debug)]
pub(in crate::backend) struct Ledger<E> {
    entries: OwnerMap<Row<E>>,
    looks: BinaryHeap<Reverse<(Moment, Owner)>>,
    pub(in crate::backend) tombstones: Tombstones,
}

impl<E> Default for Ledger<E> {
    fn default() -> Self {
        let (entries, looks) = (OwnerMap::default(), BinaryHeap::new());
        Self { entries, looks, tombstones: Tombstones::default() }
    }
}

impl<E: Entry> Ledger<E> {
    /// Enters a claim before anything of it is sent. Replaces the owner's last entry.
    pub(in crate::backend) fn insert(&mut self, owner: Owner, entry: E, now: Moment) -> Option<E> {
        let look = look_at(entry.until(), now);
        if self.looks.len() > 2 * self.entries.len() + FEW {
            let entries = &self.entries;
            self.looks.retain(|Reverse((at, owner))| {
                entries.get(owner).is_some_and(|row| row.look == *at)
            });
        }
        self.looks.push(Reverse((look, owner)));
        self.entries.insert(owner, Row { entry, look }).map(|last| last.entry)
    }

    pub(in crate::backend) fn get(&self, owner: Owner) -> Option<&E> {
        self.entries.get(&owner).map(|row| &row.entry)
    }

    pub(in crate::backend) fn contains(&self, owner: Owner) -> bool {
        self.entries.contains_key(&owner)
    }

    pub(in crate::backend) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(in crate::backend) fn iter(&self) -> impl Iterator<Item = (Owner, &E)> {
        self.entries.iter().map(|(owner, row)| (*owner, &row.entry))
    }

    /// Changes the owner's entry. `None` if it was given up meanwhile: then nothing may be
    /// granted to that owner any more.
    #[must_use]
    pub(in crate::backend) fn update<T>(
        &mut self,
        owner: Owner,
        change: impl FnOnce(&mut E) -> T,
    ) -> Option<T> {
        let row = self.entries.get_mut(&owner)?;
        let changed = change(&mut row.entry);
        let until = row.entry.until();
        if until < row.look {
            row.look = until;
            self.looks.push(Reverse((until, owner)));
        }
        Some(changed)
    }

    pub(in crate::backend) fn remove(&mut self, owner: Owner) -> Option<E> {
        self.entries.remove(&owner).map(|row| row.entry)
    }

    /// Takes all entries out: nobody is left who could ask.
    pub(in crate::backend) fn take_all(&mut self) -> Vec<E> {
        self.looks.clear();
        self.entries.drain().map(|(_, row)| row.entry).collect()
    }

    /// The entry that a hold is about: the same owner, lock and token.
    pub(in crate::backend) fn find(&self, hold: &Hold) -> Option<&E> {
        let entry = self.get(hold.owner)?;
        (entry.token() == Some(hold.token) && *entry.name() == hold.name).then_some(entry)
    }

    /// Whose lease on this lock has this token.
    pub(in crate::backend) fn owner_of(&self, name: &Name, token: Token) -> Option<Owner> {
        let mut entries = self.iter();
        let (owner, _) =
            entries.find(|(_, entry)| entry.token() == Some(token) && entry.name() == name)?;
        Some(owner)
    }

    /// The owners whose entries nobody wants any more. They stay entered, and are looked at
    /// again within ten seconds unless the store removes them; [`Self::is_overdue`] tells
    /// whether an entry still is after the store looked elsewhere.
    pub(in crate::backend) fn overdue(&mut self, now: Moment) -> Vec<Owner> {
        self.tombstones.sweep(now);
        let mut overdue = Vec::new();
        while let Some(Reverse((at, owner))) = self.looks.peek().copied()
            && at <= now
        {
            self.looks.pop();
            let Some(row) = self.entries.get_mut(&owner).filter(|row| row.look == at) else {
                continue;
            };
            let until = row.entry.until();
            if until <= now {
                overdue.push(owner);
                row.look = now + AGAIN;
            } else {
                row.look = look_at(until, now);
            }
            self.looks.push(Reverse((row.look, owner)));
        }
        overdue
    }

    pub(in crate::backend) fn is_overdue(&self, owner: Owner, now: Moment) -> bool {
        self.get(owner).is_some_and(|entry| entry.until() <= now)
    }
}

/// How long an overdue entry that could not be ended is left alone.
const AGAIN: Duration = Duration::from_millis(100);

fn look_at(until: Moment, now: Moment) -> Moment {
    until.min(now + LOOK)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Mode;

    struct Place {
        name: Name,
        token: u64,
        until: Moment,
    }

    impl Entry for Place {
        fn name(&self) -> &Name {
            &self.name
        }

        fn token(&self) -> Option<Token> {
            Some(Token::new(self.token))
        }

        fn until(&self) -> Moment {
            self.until
        }
    }

    fn second(at: u64) -> Moment {
        Moment::from_nanos(at * 1_000_000_000)
    }

    fn ledger(until: Moment) -> (Ledger<Place>, Owner) {
        let (mut ledger, owner) = (Ledger::default(), Owner::random());
        let name = Name::new("job").unwrap();
        ledger.insert(owner, Place { name, token: 7, until }, second(0));
        (ledger, owner)
    }

    #[test]
    fn an_entry_is_overdue_once_nobody_wants_it() {
        let (mut ledger, owner) = ledger(second(30));
        assert!(ledger.overdue(second(29)).is_empty());
        assert_eq!(ledger.overdue(second(30)), [owner]);
        assert!(ledger.overdue(second(30)).is_empty(), "it is being ended");
        assert_eq!(ledger.overdue(second(31)), [owner], "it could not be ended");
        assert!(ledger.remove(owner).is_some());
        assert!(ledger.overdue(second(32)).is_empty());
    }

    #[test]
    fn an_entry_may_be_wanted_for_longer_or_not_so_long() {
        let (mut ledger, owner) = ledger(second(3));
        ledger.update(owner, |place| place.until = Moment::NEVER).unwrap();
        assert!(ledger.overdue(second(5)).is_empty() && !ledger.is_overdue(owner, second(5)));
        ledger.update(owner, |place| place.until = second(8)).unwrap();
        assert_eq!(ledger.overdue(second(8)), [owner]);
        ledger.update(owner, |place| place.until = second(20)).unwrap();
        assert!(!ledger.is_overdue(owner, second(19)), "it was renewed meanwhile");
        assert!(ledger.overdue(second(19)).is_empty());
        assert_eq!(ledger.overdue(second(20)), [owner]);
    }

    #[test]
    fn a_removed_entry_changes_nothing_of_its_successor() {
        let (mut ledger, owner) = ledger(second(3));
        let last = ledger.remove(owner).unwrap();
        assert!(ledger.update(owner, |_| ()).is_none());
        ledger.insert(owner, Place { until: second(9), ..last }, second(1));
        assert!(ledger.overdue(second(8)).is_empty());
        assert_eq!(ledger.overdue(second(9)), [owner]);
    }

    #[test]
    fn a_hold_is_found_by_owner_lock_and_token() {
        let (ledger, owner) = ledger(second(3));
        let hold = |name: &str, token| Hold {
            name: Name::new(name).unwrap(),
            owner,
            token: Token::new(token),
            ttl: Duration::from_secs(3),
            mode: Mode::Exclusive,
        };
        assert!(ledger.find(&hold("job", 7)).is_some());
        assert!(ledger.find(&hold("job", 8)).is_none() && ledger.find(&hold("other", 7)).is_none());
        let name = Name::new("job").unwrap();
        assert_eq!(ledger.owner_of(&name, Token::new(7)), Some(owner));
        assert_eq!(ledger.owner_of(&name, Token::new(8)), None);
    }

    /// What is removed and entered again and again leaves few looks behind.
    #[test]
    fn looks_do_not_pile_up() {
        let (mut ledger, _) = ledger(Moment::NEVER);
        for at in 1..100 {
            for _ in 0..10 {
                let name = Name::new("job").unwrap();
                let owner = Owner::random();
                ledger.insert(owner, Place { name, token: 1, until: Moment::NEVER }, second(at));
                ledger.remove(owner);
            }
            ledger.overdue(second(at));
        }
        assert!(ledger.looks.len() <= 111, "{}", ledger.looks.len());
    }

    /// Nor where all of it happens before the next sweep.
    #[test]
    fn looks_do_not_pile_up_at_once() {
        let (mut ledger, kept) = ledger(second(3));
        for _ in 0..1_000 {
            let place = Place { name: Name::new("job").unwrap(), token: 1, until: Moment::NEVER };
            let owner = Owner::random();
            ledger.insert(owner, place, second(0));
            ledger.remove(owner);
        }
        assert!(ledger.looks.len() <= 2 * FEW, "{}", ledger.looks.len());
        assert_eq!(ledger.overdue(second(3)), [kept]);
    }
}
