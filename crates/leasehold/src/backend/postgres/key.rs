//! Which advisory lock a name stands for.

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};
use crate::name::Name;

/// Names that begin so are advisory locks by their numbers.
pub(super) const PREFIX: &str = "pg:";

/// An advisory lock: PostgreSQL has two kinds, which never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Key {
    /// `pg_advisory_lock(key)`.
    One(i64),
    /// `pg_advisory_lock(key1, key2)`.
    Two(i32, i32),
}

impl Key {
    /// `pg:12345` and `pg:1,42` are those very keys, so that hand-written locks and ours
    /// exclude each other. Any other name is the first 64 bits of its SHA-256.
    ///
    /// Never change this: programs of different versions must agree.
    ///
    /// # Errors
    ///
    /// For `pg:` and something else: hashed, it would not exclude the lock that was meant.
    pub(super) fn of(name: &Name) -> Result<Self> {
        if let Some(numbers) = name.as_str().strip_prefix(PREFIX) {
            return Self::exact(numbers).ok_or_else(|| {
                let message = format!(
                    "{name} is no advisory lock. Write pg:12345 for pg_advisory_lock(12345) and \
                     pg:1,42 for pg_advisory_lock(1, 42): 64 bits, or two times 32, in plain \
                     digits without a plus sign, spaces or leading zeros"
                );
                Error::invalid(message)
            });
        }
        let digest = Sha256::digest(name.as_str().as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        Ok(Self::One(i64::from_be_bytes(first)))
    }

    fn exact(numbers: &str) -> Option<Self> {
        match numbers.split_once(',') {
            Some((first, second)) => Some(Self::Two(half(first)?, half(second)?)),
            None => plain(numbers).map(Self::One),
        }
    }

    /// As `pg_locks` shows it: classid, objid, objsubid.
    pub(super) fn shown(self) -> (i64, i64, i16) {
        match self {
            Self::One(key) => (i64::from((key >> 32) as u32), i64::from(key as u32), 1),
            Self::Two(first, second) => (i64::from(first as u32), i64::from(second as u32), 2),
        }
    }

    /// The key that `pg_locks` shows so.
    pub(super) fn from_shown(high: i64, low: i64, form: i16) -> Self {
        match form {
            1 => Self::One(high << 32 | low),
            _ => Self::Two(high as u32 as i32, low as u32 as i32),
        }
    }
}

/// A number as everybody writes it: what reads differently may be meant differently.
fn plain(text: &str) -> Option<i64> {
    text.parse().ok().filter(|number: &i64| number.to_string() == text)
}

/// One of two numbers: as functions take it, or without a sign, as `pg_locks` shows it.
fn half(text: &str) -> Option<i32> {
    let number = plain(text)?;
    i32::try_from(number).ok().or_else(|| u32::try_from(number).ok().map(|number| number as i32))
}

/// These keys as `pg_locks` shows them: classid, objid and objsubid of each.
pub(super) fn shown(keys: impl Iterator<Item = Key>) -> (Vec<i64>, Vec<i64>, Vec<i16>) {
    keys.map(Key::shown).collect()
}

impl std::fmt::Display for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::One(key) => write!(f, "{key}"),
            Self::Two(first, second) => write!(f, "{first},{second}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(name: &str) -> Key {
        Key::of(&Name::new(name).unwrap()).unwrap()
    }

    /// tooz took 16 bits of a hash; others one that changed with the toolchain. These
    /// values are what programs out there use: a change here breaks exclusion with them.
    #[test]
    fn names_map_to_these_keys_for_ever() {
        assert_eq!(key("a"), Key::One(-3_848_465_438_864_589_366));
        assert_eq!(key("nightly-report"), Key::One(7_440_995_589_958_059_143));
        assert_eq!(key("größe 日本"), Key::One(1_106_561_608_482_378_207));
        assert_eq!(key("pg:12345"), Key::One(12345));
        assert_eq!(key("pg:-1"), Key::One(-1));
        assert_eq!(key("pg:1,42"), Key::Two(1, 42));
        assert_eq!(key("pg:-1,-2147483648"), Key::Two(-1, i32::MIN));
    }

    /// pg_locks has no signs: who copies a key from there means the same lock.
    #[test]
    fn a_half_may_be_written_without_its_sign() {
        assert_eq!(key("pg:4294967295,1"), key("pg:-1,1"));
        assert_eq!(key("pg:0,2147483648"), Key::Two(0, i32::MIN));
    }

    /// They were hashed, and did not exclude the lock that was meant.
    #[test]
    fn what_is_no_number_is_no_advisory_lock() {
        for name in [
            "pg:",
            "pg:5x",
            "pg:abc",
            "pg:+5",
            "pg:05",
            "pg:-0",
            "pg: 5",
            "pg:1, 42",
            "pg:1,",
            "pg:,1",
            "pg:1,2,3",
            "pg:9223372036854775808",
            "pg:-2147483649,1",
            "pg:1,4294967296",
        ] {
            let error = Key::of(&Name::new(name).unwrap()).unwrap_err();
            assert_eq!(*error.kind(), crate::ErrorKind::Invalid, "{name}");
            assert!(error.to_string().contains("pg:1,42"), "{error}");
        }
    }

    #[test]
    fn they_are_found_again_in_pg_locks() {
        for one in [Key::One(0), Key::One(-1), Key::One(i64::MIN), Key::Two(-1, 42)] {
            let (high, low, form) = one.shown();
            assert_eq!(Key::from_shown(high, low, form), one);
        }
        assert_eq!(Key::One(1 << 32 | 5).shown(), (1, 5, 1));
        assert_eq!(Key::Two(1, 42).shown(), (1, 42, 2));
    }
}
