//! Which advisory lock a name stands for.

use sha2::{Digest, Sha256};

use crate::name::Name;

/// An advisory lock: PostgreSQL has two kinds, which never meet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(in super::super) enum Key {
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
    pub(in super::super) fn of(name: &Name) -> Self {
        let exact = name.as_str().strip_prefix("pg:").and_then(Self::exact);
        exact.unwrap_or_else(|| {
            let digest = Sha256::digest(name.as_str().as_bytes());
            let mut first = [0; 8];
            first.copy_from_slice(&digest[..8]);
            Self::One(i64::from_be_bytes(first))
        })
    }

    /// The numbers as everybody writes them: `+5` and `05` are names like any other.
    fn exact(text: &str) -> Option<Self> {
        let key = match text.split_once(',') {
            Some((first, second)) => Self::Two(first.parse().ok()?, second.parse().ok()?),
            None => Self::One(text.parse().ok()?),
        };
        (key.to_string() == text).then_some(key)
    }

    /// As `pg_locks` shows it: classid, objid, objsubid.
    pub(in super::super) fn shown(self) -> (i64, i64, i16) {
        match self {
            Self::One(key) => (i64::from((key >> 32) as u32), i64::from(key as u32), 1),
            Self::Two(first, second) => (i64::from(first as u32), i64::from(second as u32), 2),
        }
    }

    /// The key that `pg_locks` shows so.
    pub(in super::super) fn from_shown(high: i64, low: i64, form: i16) -> Self {
        match form {
            1 => Self::One(high << 32 | low),
            _ => Self::Two(high as u32 as i32, low as u32 as i32),
        }
    }
}

/// These keys as `pg_locks` shows them: classid, objid and objsubid of each.
pub(super) fn shown(keys: impl Iterator<Item = Key>) -> (Vec<i64>, Vec<i64>, Vec<i16>) {
    let (mut high, mut low, mut form) = (Vec::new(), Vec::new(), Vec::new());
    for key in keys {
        let shown = key.shown();
        high.push(shown.0);
        low.push(shown.1);
        form.push(shown.2);
    }
    (high, low, form)
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
        Key::of(&Name::new(name).unwrap())
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

    #[test]
    fn only_numbers_as_they_are_written_are_exact() {
        for name in ["pg:", "pg:+5", "pg:05", "pg:1, 42", "pg:1,", "pg:9223372036854775808"] {
            let hashed = matches!(key(name), Key::One(key) if key.unsigned_abs() > 1 << 32);
            assert!(hashed, "{name}");
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
