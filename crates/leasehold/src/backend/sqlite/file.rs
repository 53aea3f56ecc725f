//! Which file the store is: SQLite goes on with a file that was removed or replaced,
//! and then those who come later meet at another one. It cannot be prevented, but seen:
//! then all locks of this store are gone.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::{mount, parts};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// How often to look: far less often than a request, far more often than a renewal.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// The file that was opened, and the log and the index that SQLite keeps beside it: who
/// removes only those parts the processes just as well.
#[derive(Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    /// Each with its device and inode. They stay while a connection is open.
    parts: Vec<(PathBuf, (u64, u64))>,
    /// The process that opened it.
    process: u32,
    /// In nanoseconds since boot.
    look_at: AtomicU64,
    /// The first of them that was found to be gone. That is final: who came meanwhile met
    /// elsewhere.
    gone: OnceLock<PathBuf>,
}

impl OpenedFile {
    /// Remembers the files that are there now, with a connection open.
    pub(super) fn new(path: &Path) -> Result<Self> {
        let mut known = Vec::new();
        for part in parts(path) {
            // Never opened: closing it would drop SQLite's locks.
            match fs::metadata(&part) {
                Ok(file) => known.push((part, identity(&file))),
                Err(_) if part == path => return Err(replaced(path)),
                Err(_) => {}
            }
        }
        let (path, process) = (path.to_owned(), std::process::id());
        Ok(Self { path, parts: known, process, look_at: AtomicU64::new(0), gone: OnceLock::new() })
    }

    /// Whether it may be used by this process, and, now and then, whether others who
    /// open the path still meet us there.
    pub(super) fn check(&self, now: Moment) -> Result<()> {
        if self.process != std::process::id() {
            return Err(forked(&self.path));
        }
        if self.gone.get().is_none()
            && now < Moment::from_nanos(self.look_at.load(Ordering::Relaxed))
        {
            return Ok(());
        }
        self.look()?;
        self.look_at.store((now + INTERVAL).as_nanos(), Ordering::Relaxed);
        Ok(())
    }

    /// Whether others who open the path still meet us there.
    pub(super) fn look(&self) -> Result<()> {
        if let Some(gone) = self.gone.get() {
            return Err(replaced(gone));
        }
        let is_here = |(part, before): &(PathBuf, _)| match fs::metadata(part) {
            Ok(file) => identity(&file) == *before,
            // Cannot see is not gone.
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        };
        match self.parts.iter().find(|part| !is_here(part)) {
            None => Ok(()),
            Some((gone, _)) => Err(replaced(self.gone.get_or_init(|| gone.clone()))),
        }
    }
}

/// Refuses a file with a second name: SQLite keeps the log beside the name, so processes
/// that came by different names would write to one file with two logs.
pub(super) fn refuse_second_name(path: &Path) -> Result<()> {
    let names = fs::metadata(path).map_or(1, |file| file.nlink());
    if names <= 1 || path.is_dir() {
        return Ok(());
    }
    let message = format!(
        "{} has {names} names (hard links), and would be damaged by way of the others; \
         remove them, or copy the file while no process uses it",
        path.display()
    );
    Err(Error::new(ErrorKind::Refused, message))
}

/// Refuses a file that is mounted by itself, alone or with its log: those who open it
/// elsewhere would use another log, and hold the same locks.
pub(super) fn refuse_mounts(path: &Path) -> Result<()> {
    let Some(part) = parts(path).into_iter().find(|part| mount::is_root(part)) else {
        return Ok(());
    };
    let message = format!(
        "{} is mounted by itself (docker -v FILE:FILE, a Kubernetes subPath), so its log is not \
         shared: two processes could hold one lock; mount its directory instead",
        part.display()
    );
    Err(Error::new(ErrorKind::Refused, message))
}

fn identity(file: &fs::Metadata) -> (u64, u64) {
    (file.dev(), file.ino())
}

fn replaced(path: &Path) -> Error {
    let message = format!(
        "{} was removed or replaced while it was in use; locks that were taken before exclude \
         nobody any more: restart all processes that use it",
        path.display()
    );
    Error::new(ErrorKind::Gone, message)
}

/// A child inherits the descriptors, but neither SQLite's locks nor the threads.
fn forked(path: &Path) -> Error {
    let message = format!(
        "this process was forked after it opened {}; open the store after the fork",
        path.display()
    );
    Error::new(ErrorKind::Refused, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_child_may_not_use_what_its_parent_opened() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let opened = OpenedFile::new(file.path()).unwrap();
        opened.check(Moment::from_nanos(1)).unwrap();
        let inherited = OpenedFile { process: std::process::id() + 1, ..opened };
        let error = inherited.check(Moment::from_nanos(1)).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Refused);
    }
}
