//! The name of a lock: what every store can keep, checked once, here.

use std::cmp::Ordering;
use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::{Arc, LazyLock};

/// The longest name, in bytes, that every store can keep.
pub const MAX_NAME_BYTES: usize = 255;

/// The name of a lock. Cheap to clone.
///
/// Not empty, at most [`MAX_NAME_BYTES`] bytes, no control characters.
#[derive(Clone, PartialEq, Eq)]
pub struct Name {
    /// Of the text, made once: a name is looked up many times in its life.
    hash: u64,
    text: Arc<str>,
}

/// With keys of this process: who chooses names cannot choose where they collide.
static HASHES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

impl Name {
    /// Checks and keeps a name.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] says which rule the name breaks.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        if name.is_empty() {
            return Err(InvalidName::Empty);
        }
        if name.len() > MAX_NAME_BYTES {
            return Err(InvalidName::TooLong { bytes: name.len() });
        }
        if let Some(found) = name.chars().find(|c| c.is_control()) {
            return Err(InvalidName::ControlCharacter { found });
        }
        Ok(Self { hash: HASHES.hash_one(name), text: name.into() })
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl Hash for Name {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hash);
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Self) -> Ordering {
        self.text.cmp(&other.text)
    }
}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text, f)
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl AsRef<str> for Name {
    fn as_ref(&self) -> &str {
        &self.text
    }
}

/// Why a text cannot be the name of a lock.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The name has no characters.
    #[error("a lock's name must not be empty")]
    Empty,
    /// The name is longer than some store can keep.
    #[error(
        "a lock's name may have at most {MAX_NAME_BYTES} bytes, this one has {bytes}; \
         use a shorter name, or a hash of the long part"
    )]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// The name would break lists, logs and some stores' keys.
    #[error("a lock's name must not contain control characters, this one has {found:?}")]
    ControlCharacter {
        /// The first one found.
        found: char,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepts_what_every_store_can_keep() {
        for name in ["a", "inventory:item42", "jobs/{42}/x", "größe 日本", &"x".repeat(255)] {
            assert_eq!(Name::new(name).unwrap().as_str(), name);
        }
    }

    #[test]
    fn is_found_by_another_of_the_same_text_and_sorted_by_it() {
        let name = |text: &str| Name::new(text).unwrap();
        let map: std::collections::HashMap<Name, u32> =
            (0..1000).map(|i| (name(&format!("x:{i}")), i)).collect();
        assert_eq!(map.get(&name("x:42")), Some(&42));
        assert_eq!(map.get(&name("y:42")), None);
        assert!(name("a") < name("b") && name("b") < name("ba"));
    }

    #[test]
    fn refuses_the_rest_with_the_reason() {
        assert_eq!(Name::new(""), Err(InvalidName::Empty));
        assert_eq!(Name::new("x".repeat(256)), Err(InvalidName::TooLong { bytes: 256 }));
        assert_eq!(Name::new("a\nb"), Err(InvalidName::ControlCharacter { found: '\n' }));
        assert_eq!(Name::new("a\0"), Err(InvalidName::ControlCharacter { found: '\0' }));
    }
}
