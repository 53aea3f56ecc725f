//! The unique id of one acquisition.

use std::fmt;
use std::str::FromStr;

/// The unique id of one acquisition: 128 random bits, never reused.
///
/// It prints as 32 hexadecimal digits and parses from them.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner([u8; 16]);

impl Owner {
    /// A fresh owner, for one acquisition.
    pub fn random() -> Self {
        Self(rand::random::<u128>().to_be_bytes())
    }

    /// Its 16 bytes, in the order in which they print.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// The owner of these 16 bytes.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({self})")
    }
}

impl FromStr for Owner {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u128::from_str_radix(text, 16).map(|number| Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prints_and_parses_32_digits() {
        let owner = Owner::from_bytes([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 255]);
        assert_eq!(owner.to_string(), "000102030405060708090a0b0c0d0eff");
        assert_eq!(owner.to_string().parse::<Owner>().unwrap(), owner);
        assert_eq!(Owner::from_bytes(owner.to_bytes()), owner);
    }
}
