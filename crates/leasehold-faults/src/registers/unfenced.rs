//! The control: a counter that is read, and a while later written, by whoever believes to
//! hold the lock. A holder that overstays its lease overwrites what others added.

use std::fs::File;
use std::io;
use std::path::Path;

/// The unfenced register of a lock.
#[derive(Debug)]
pub struct Unfenced(File);

impl Unfenced {
    /// The register at this path.
    pub fn open(path: &Path) -> io::Result<Self> {
        super::open(path).map(Self)
    }

    /// Its value.
    pub fn read(&self) -> io::Result<u64> {
        super::read(&self.0).map(|[value]| value)
    }

    /// Sets its value, whatever it is now.
    pub fn write(&self, value: u64) -> io::Result<()> {
        super::write(&self.0, [value])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_late_writer_overwrites() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("register");
        let (one, two) = (Unfenced::open(&path).unwrap(), Unfenced::open(&path).unwrap());
        let seen = one.read().unwrap();
        for value in 1..=3 {
            two.write(value).unwrap();
        }
        one.write(seen + 1).unwrap();
        assert_eq!(two.read().unwrap(), 1);
    }
}
