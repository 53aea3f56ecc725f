//! A file on a local disk that takes no late writes.
//!
//! Beside `report.csv` lies `report.csv.fence`, the highest token seen, twenty digits. Every
//! write holds a lock on it, raises it, and then renames a new file into place: readers see
//! the old or the new file, whole. Deleting leaves the sidecar behind as a tombstone. Behind a
//! symbolic link all of it happens where the link leads to.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};

use place::Place;

use super::error::{FenceError, StaleToken};
use super::rejection::rejected;
use crate::outcome::Outcome;
use crate::token::Token;

mod place;

/// How long a write waits for another one to the same file.
const PATIENCE: Duration = Duration::from_secs(10);
/// The digits of the largest token.
const DIGITS: usize = 20;

/// A file that only the newest lease may write.
///
/// All calls block, shortly: they write to a disk. Not for network file systems, whose
/// locks do not reach every host.
///
/// A symbolic link is followed and stays: the file that it leads to is written, and its mark is the
/// same with the link and without. The file need not be there. A link into a folder that is not there,
/// or in a circle, is an error.
///
/// ```
/// use leasehold_fence::Token;
/// use leasehold_fence::FencedFile;
///
/// # let folder = tempfile::tempdir().unwrap();
/// let report = FencedFile::new(folder.path().join("report.csv"));
/// report.write(Token::new(33), b"old")?;
/// report.write(Token::new(34), b"new")?;
/// assert!(report.write(Token::new(33), b"late").is_err());
/// assert_eq!(std::fs::read(report.path()).unwrap(), b"new");
/// # Ok::<(), leasehold_fence::FenceError>(())
/// ```
#[derive(Debug, Clone)]
pub struct FencedFile {
    path: PathBuf,
}

impl FencedFile {
    /// The file at this path; it need not exist, its directory must.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// Where it is, as given.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces the whole file. When this returns, it is on the disk.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] when a newer lease has been here. After
    /// [`FenceError::Failed`] the file is the old or the new one, whole.
    pub fn write(&self, token: Token, content: &[u8]) -> Result<(), FenceError> {
        self.under(token, |place| {
            let temporary = place.temporary();
            let mut file = create(&temporary, &place.file)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::rename(&temporary, &place.file)?;
            sync_directory(place)
        })
    }

    /// Deletes the file, if it is there. Its mark stays: a late writer cannot bring it back.
    ///
    /// # Errors
    ///
    /// As [`FencedFile::write`].
    pub fn delete(&self, token: Token) -> Result<(), FenceError> {
        self.under(token, |place| match fs::remove_file(&place.file) {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(error),
            _ => sync_directory(place),
        })
    }

    /// Shuts out every older lease from now on.
    ///
    /// # Errors
    ///
    /// As [`FencedFile::write`].
    pub fn advance(&self, token: Token) -> Result<(), FenceError> {
        self.under(token, |_| Ok(()))
    }

    /// The highest token it has seen.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when the sidecar cannot be read.
    pub fn seen(&self) -> Result<Option<Token>, FenceError> {
        let look = || Place::of(&self.path).and_then(|place| highest(place.sidecars()));
        look().map_err(|error| self.failed(Outcome::NotApplied, error))
    }

    /// Does this with the sidecar locked and raised.
    fn under(
        &self,
        token: Token,
        change: impl FnOnce(&Place) -> io::Result<()>,
    ) -> Result<(), FenceError> {
        let before = |error| self.failed(Outcome::NotApplied, error);
        let place = Place::of(&self.path).map_err(before)?;
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let sidecar = options.open(&place.sidecar).map_err(before)?;
        self.lock(&sidecar, &place)?;
        let seen = highest(place.sidecars()).map_err(before)?;
        if let Some(seen) = seen.filter(|seen| *seen > token) {
            let stale = StaleToken { given: token, seen };
            return Err(rejected("file", self.path.to_string_lossy(), stale).into());
        }
        if mark(&sidecar).map_err(before)? != Some(token) {
            // Before the change: after a crash between the two the mark is too high, which
            // only shuts out who was late anyway.
            raise(&sidecar, token).and_then(|()| sync_directory(&place)).map_err(before)?;
        }
        change(&place).map_err(|error| self.failed(Outcome::Unknown, error))
        // Closing the sidecar unlocks it.
    }

    fn lock(&self, sidecar: &File, place: &Place) -> Result<(), FenceError> {
        let pause = Duration::from_millis(2);
        for _ in 0..PATIENCE.as_millis() / pause.as_millis() {
            match flock(sidecar, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(pause),
                Err(error) => return Err(self.failed(Outcome::NotApplied, error.into())),
            }
        }
        let message = format!(
            "another process has locked {} for {PATIENCE:?}; look which (`fuser`): it may be \
             stopped in the middle of a write",
            place.sidecar.display()
        );
        Err(self.failed(Outcome::NotApplied, io::Error::new(ErrorKind::TimedOut, message)))
    }

    fn failed(&self, outcome: Outcome, error: io::Error) -> FenceError {
        FenceError::failed(self.path.to_string_lossy(), outcome, error)
    }
}

/// A new file with the mode of the one that it is to replace.
fn create(path: &Path, old: &Path) -> io::Result<File> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    match fs::metadata(old) {
        Err(error) if error.kind() == ErrorKind::NotFound => options.open(path),
        Err(error) => Err(error),
        Ok(before) => {
            // Closed to others until its mode is right.
            let file = options.mode(0o600).open(path)?;
            file.set_permissions(before.permissions())?;
            Ok(file)
        }
    }
}

fn sync_directory(place: &Place) -> io::Result<()> {
    File::open(place.folder())?.sync_all()
}

/// The highest mark of these sidecars, of which some may be missing.
fn highest<'a>(sidecars: impl Iterator<Item = &'a Path>) -> io::Result<Option<Token>> {
    let mut highest: Option<Token> = None;
    for sidecar in sidecars {
        match File::open(sidecar) {
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
            Ok(sidecar) => highest = highest.max(mark(&sidecar)?),
        }
    }
    Ok(highest)
}

fn mark(sidecar: &File) -> io::Result<Option<Token>> {
    let mut digits = [0; DIGITS];
    if sidecar.metadata()?.len() == 0 {
        return Ok(None);
    }
    let damaged = || {
        let message = "its sidecar (.fence) is damaged: write the highest token that you know of \
                       into it, as twenty digits";
        io::Error::new(ErrorKind::InvalidData, message)
    };
    sidecar.read_exact_at(&mut digits, 0).map_err(|_| damaged())?;
    let number = str::from_utf8(&digits).ok().and_then(|digits| digits.parse().ok());
    number.map(|number| Some(Token::new(number))).ok_or_else(damaged)
}

fn raise(sidecar: &File, token: Token) -> io::Result<()> {
    // In place and of fixed width: renaming would take the locked file away, and one
    // sector is written whole or not at all.
    sidecar.write_all_at(format!("{:0DIGITS$}\n", token.get()).as_bytes(), 0)?;
    sidecar.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fenced() -> (tempfile::TempDir, FencedFile) {
        let folder = tempfile::tempdir().unwrap();
        let file = FencedFile::new(folder.path().join("file"));
        (folder, file)
    }

    #[test]
    fn a_deleted_file_is_not_brought_back_by_a_late_writer() {
        let (_folder, file) = fenced();
        file.write(Token::new(5), b"five").unwrap();
        file.delete(Token::new(6)).unwrap();
        let late = file.write(Token::new(5), b"late").unwrap_err();
        assert_eq!(late.stale(), Some(StaleToken { given: Token::new(5), seen: Token::new(6) }));
        assert!(!file.path().exists());
        file.write(Token::new(6), b"six").unwrap();
        assert_eq!(fs::read(file.path()).unwrap(), b"six");
        assert_eq!(file.seen().unwrap(), Some(Token::new(6)));
    }

    #[test]
    fn a_file_keeps_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let (_folder, file) = fenced();
        file.write(Token::new(5), b"five").unwrap();
        for mode in [0o600, 0o640, 0o755] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            file.write(Token::new(5), b"again").unwrap();
            assert_eq!(fs::metadata(file.path()).unwrap().permissions().mode() & 0o777, mode);
        }
    }

    #[test]
    fn a_damaged_sidecar_is_an_error_and_not_a_zero() {
        let (folder, file) = fenced();
        file.advance(Token::new(u64::MAX)).unwrap();
        assert_eq!(file.seen().unwrap(), Some(Token::new(u64::MAX)));
        fs::write(folder.path().join("file.fence"), "not digits").unwrap();
        let error = file.write(Token::new(u64::MAX), b"x").unwrap_err();
        assert!(error.to_string().contains("damaged"), "{error}");
        assert!(!file.path().exists());
    }
}
