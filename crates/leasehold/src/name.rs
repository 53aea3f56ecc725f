//! Names of locks, and collections of them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

pub use leasehold_fence::{InvalidName, MAX_NAME_BYTES, Name};

/// A map from names, by the hash that each of them brings along.
pub(crate) type NameMap<V> = HashMap<Name, V, BuildHasherDefault<Brought>>;

/// A set of names, by the same.
pub(crate) type NameSet = HashSet<Name, BuildHasherDefault<Brought>>;

/// The hash that a name brings along.
#[derive(Debug, Default)]
pub(crate) struct Brought(u64);

impl Hasher for Brought {
    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }

    /// Not for names; right all the same.
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_found_by_its_own_hash() {
        let name = |text: &str| Name::new(text).unwrap();
        let map: NameMap<u32> = (0..1000).map(|i| (name(&format!("x:{i}")), i)).collect();
        assert_eq!(map.get(&name("x:42")), Some(&42));
        assert_eq!(map.get(&name("y:42")), None);
    }
}
