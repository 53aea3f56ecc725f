//! Where a lock is kept: its own key, and companions in the slot of that key.
//!
//! A cluster keeps keys together whose `{tag}` is the same. The lock's own name cannot be
//! that tag (it may have braces of its own), so every slot has a fixed tag that hashes to it.

use std::fmt::Write;
use std::sync::LazyLock;

use crate::error::{Error, Result};
use crate::name::Name;
use crate::owner::Owner;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// The key of a lock, and what its companions begin with.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Keys {
    /// The slot that all of them are in.
    pub(crate) slot: u16,
    /// The lock's own key: a plain string that holds the owner.
    pub(crate) lock: String,
}

/// The kinds of companions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Companion {
    /// The last token, and who got it.
    Record,
    /// Who waits, in order: a list. (Not the name that a redlock gives to a hash.)
    Queue,
    /// Who waits at a node of a redlock, and the tombstones there.
    RedlockQueue,
    /// The last force-release.
    Forced,
}

impl Companion {
    const fn infix(self) -> &'static str {
        match self {
            Self::Record => "leasehold:record:",
            Self::Queue => "leasehold:queue:",
            Self::RedlockQueue => "leasehold:line:",
            Self::Forced => "leasehold:forced:",
        }
    }
}

impl Keys {
    pub(crate) fn new(prefix: &str, name: &Name) -> Self {
        let lock = format!("{prefix}{name}");
        Self { slot: slot(lock.as_bytes()), lock }
    }

    /// Refuses a lock whose own key would be a companion of another: with an empty prefix, or one
    /// that begins with a brace, a name may spell one.
    pub(crate) fn check(&self) -> Result<()> {
        match companion_of(&self.lock) {
            None => Ok(()),
            Some((_, other)) => Err(Error::invalid(format!(
                "the key {:?} belongs to the lock with the key {other:?}: take another name, or \
                 another prefix",
                self.lock
            ))),
        }
    }

    /// Writes the key of an owner's tombstone.
    pub(super) fn push_tombstone(&self, key: &mut String, owner: Owner) {
        push_tag(key, self.slot);
        // A `String` takes everything.
        let _ = write!(key, "leasehold:bar:{owner}:{}", self.lock);
    }

    /// Writes the key of this companion.
    pub(crate) fn push_companion(&self, key: &mut String, companion: Companion) {
        push_tag(key, self.slot);
        key.push_str(companion.infix());
        key.push_str(&self.lock);
    }
}

/// The lock key that this key is, or belongs to as its queue. What only remembers an
/// earlier lease says nothing about the present.
pub(super) fn lock_key_of(key: &str) -> Option<&str> {
    match companion_of(key) {
        None => Some(key),
        Some(("queue" | "line", lock)) => Some(lock),
        Some(_) => None,
    }
}

/// Which kind of companion this key is, and of which lock key. It has the tag of that one's slot:
/// what only looks like a companion is a lock.
fn companion_of(key: &str) -> Option<(&str, &str)> {
    let (found, rest) = key.strip_prefix('{')?.split_once('}')?;
    let (kind, lock) = rest.strip_prefix("leasehold:")?.split_once(':')?;
    let lock = match kind {
        "record" | "queue" | "line" | "forced" => lock,
        "bar" => lock.split_once(':').filter(|(owner, _)| owner.len() == 32)?.1,
        _ => return None,
    };
    let tag = tag(slot(lock.as_bytes()));
    (tag[1..tag.len() - 1] == *found).then_some((kind, lock))
}

/// The slot of a key, as every Redis cluster computes it.
pub(crate) fn slot(key: &[u8]) -> u16 {
    let open = key.iter().position(|&byte| byte == b'{');
    let tag = open.and_then(|open| {
        let length = key[open + 1..].iter().position(|&byte| byte == b'}')?;
        (length > 0).then(|| &key[open + 1..open + 1 + length])
    });
    crc16(tag.unwrap_or(key)) % SLOTS
}

/// `{…}`, so that what begins with it is in this slot. Do not change this: clients of all
/// versions must agree on it.
pub(super) fn tag(slot: u16) -> String {
    let mut tag = String::with_capacity(64);
    push_tag(&mut tag, slot);
    tag
}

fn push_tag(key: &mut String, slot: u16) {
    key.push('{');
    push_base36(key, TAGS[usize::from(slot)]);
    key.push('}');
}

/// For each slot the smallest number whose base-36 digits hash to it.
static TAGS: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut missing = tags.len();
    let mut digits = String::new();
    for number in 0.. {
        if missing == 0 {
            break;
        }
        digits.clear();
        push_base36(&mut digits, number);
        let tag = &mut tags[usize::from(crc16(digits.as_bytes()) % SLOTS)];
        if tag.is_none() {
            *tag = Some(number);
            missing -= 1;
        }
    }
    tags.into_iter().flatten().collect()
});

fn push_base36(text: &mut String, number: u32) {
    if number >= 36 {
        push_base36(text, number / 36);
    }
    text.push(char::from_digit(number % 36, 36).unwrap_or('0'));
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes
        .iter()
        .fold(0, |crc: u16, &byte| (crc << 8) ^ CRC_OF_BYTE[usize::from((crc >> 8) as u8 ^ byte)])
}

const CRC_OF_BYTE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_cluster_specification() {
        assert_eq!(slot(b"123456789"), 0x31c3);
        assert_eq!(slot(b"{user1000}.following"), slot(b"user1000"));
        assert_eq!(slot(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot(b"foo{{bar}}zap"), slot(b"{bar"));
        assert_eq!(slot(b"foo{bar}{zap}"), slot(b"bar"));
    }

    #[test]
    fn every_tag_lands_in_its_slot() {
        for number in 0..SLOTS {
            assert_eq!(slot(tag(number).as_bytes()), number);
        }
    }

    /// Frozen: other versions look for companions under the same tags.
    #[test]
    fn tags_never_change() {
        assert_eq!(tag(0), "{1bz}");
        assert_eq!(tag(1), "{emj}");
        assert_eq!(tag(12739), tag(slot(b"123456789")));
        assert_eq!(tag(16383), "{hia}");
    }

    #[test]
    fn companions_share_the_slot_of_their_lock_whatever_its_name() {
        for name in ["jobs", "jobs{42}", "{a}{b}", "}{", "{}", "größe{日本}", "{{x}"] {
            for prefix in ["lock:", "", "{p}:"] {
                let keys = Keys::new(prefix, &Name::new(name).unwrap());
                let same_slot = |key: &str| {
                    assert_eq!(slot(key.as_bytes()), slot(keys.lock.as_bytes()), "{key}");
                };
                use Companion::{Forced, Queue, Record, RedlockQueue};
                for kind in [Record, Queue, RedlockQueue, Forced] {
                    let mut key = String::new();
                    keys.push_companion(&mut key, kind);
                    same_slot(&key);
                    let waits = matches!(kind, Queue | RedlockQueue);
                    assert_eq!(lock_key_of(&key), waits.then_some(keys.lock.as_str()));
                }
                let mut tombstone = String::new();
                keys.push_tombstone(&mut tombstone, Owner::random());
                same_slot(&tombstone);
                assert_eq!(lock_key_of(&tombstone), None);
                assert_eq!(lock_key_of(&keys.lock), Some(keys.lock.as_str()));
            }
        }
    }

    #[test]
    fn only_a_companion_of_another_lock_is_refused() {
        let keys = |prefix: &str, name: &str| Keys::new(prefix, &Name::new(name).unwrap());
        let mut queue = String::new();
        keys("", "jobs").push_companion(&mut queue, Companion::Queue);
        let mut tombstone = String::new();
        keys("", "jobs").push_tombstone(&mut tombstone, Owner::random());
        for taken in [&queue, &tombstone] {
            let error = keys("", taken).check().unwrap_err();
            assert_eq!(*error.kind(), crate::ErrorKind::Invalid);
            assert!(error.to_string().contains("\"jobs\""), "{error}");
            keys("lock:", taken).check().unwrap();
        }
        let (tag, rest) = queue.split_once('}').unwrap();
        keys(&format!("{tag}}}"), rest).check().unwrap_err();
        for free in ["{a}leasehold:record:x", "{}leasehold:queue:jobs", "{p}:a}leasehold:bar:b"] {
            let keys = keys("", free);
            keys.check().unwrap();
            assert_eq!(lock_key_of(&keys.lock), Some(free));
        }
    }
}
