//! Maps from owners.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use crate::owner::Owner;

/// A map from owners. An owner is random already, and chosen by this process: its own bits
/// serve as its hash.
pub(in crate::backend) type OwnerMap<V> = HashMap<Owner, V, BuildHasherDefault<OwnBits>>;

/// The first bits of what is hashed.
#[derive(Debug, Default)]
pub(in crate::backend) struct OwnBits(u64);

impl Hasher for OwnBits {
    fn write(&mut self, bytes: &[u8]) {
        if let Some(first) = bytes.first_chunk() {
            self.0 ^= u64::from_le_bytes(*first);
        }
    }

    /// The length, which is always the same.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn owners_are_told_apart() {
        let mut table: OwnerMap<usize> = OwnerMap::default();
        let owners: Vec<Owner> = (0..1_000).map(|_| Owner::random()).collect();
        for (at, owner) in owners.iter().enumerate() {
            assert_eq!(table.insert(*owner, at), None);
        }
        let hashes: std::collections::HashSet<u64> =
            owners.iter().map(|owner| table.hasher().hash_one(owner)).collect();
        assert_eq!(hashes.len(), owners.len());
    }
}
