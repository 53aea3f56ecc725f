//! A register that refuses a write with a lower token than the highest it has seen.

use std::fs::File;
use std::io;
use std::path::Path;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

/// The fenced register of a lock.
#[derive(Debug)]
pub struct Fenced(File);

/// What became of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Written {
    /// It is in.
    Accepted {
        /// The value it made.
        value: u64,
        /// How many writes were accepted, this one included.
        number: u64,
    },
    /// A higher token was there before.
    Rejected {
        /// That token.
        highest: u64,
    },
}

impl Fenced {
    /// The register at this path.
    pub fn open(path: &Path) -> io::Result<Self> {
        super::open(path).map(Self)
    }

    /// Adds one to its value in the name of `token`.
    pub async fn add(&self, token: u64) -> io::Result<Written> {
        // Not blocking: a writer may be stopped here while it has the file, and the runtime
        // must go on looking after its leases.
        while let Err(error) = flock(&self.0, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(error.into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let written = self.compare_and_add(token);
        flock(&self.0, FlockOperation::Unlock)?;
        written
    }

    fn compare_and_add(&self, token: u64) -> io::Result<Written> {
        let [number, highest, value] = super::read(&self.0)?;
        if token < highest {
            return Ok(Written::Rejected { highest });
        }
        let (number, value) = (number + 1, value + 1);
        super::write(&self.0, [number, token, value])?;
        Ok(Written::Accepted { value, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_lower_token_is_refused_after_a_higher_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("register");
        let (one, two) = (Fenced::open(&path).unwrap(), Fenced::open(&path).unwrap());
        assert_eq!(one.add(5).await.unwrap(), Written::Accepted { value: 1, number: 1 });
        assert_eq!(two.add(7).await.unwrap(), Written::Accepted { value: 2, number: 2 });
        assert_eq!(one.add(6).await.unwrap(), Written::Rejected { highest: 7 });
        assert_eq!(one.add(7).await.unwrap(), Written::Accepted { value: 3, number: 3 });
    }
}
