//! Where the store lies, in full and by default, and who may use its files.
//!
//! The users of their folder may. The umask (or the folder's default ACL) decides as for any
//! file; where the folder is writable for its group or for all, so is the store in it, whatever
//! the umask is. SQLite alone would let no second user write.

use std::ffi::OsString;
use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mknodat, openat, stat,
};
use rustix::process::geteuid;

use crate::error::{Error, ErrorKind, Result};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;

/// The database and what SQLite keeps beside it: the log and its index.
pub(super) fn parts(path: &Path) -> [PathBuf; 3] {
    [path.to_owned(), beside(path, "-wal"), beside(path, "-shm")]
}

pub(super) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}

/// The user's store: `locks.db` in the state directory, which is created if need be.
pub(super) fn default_path() -> Result<PathBuf> {
    let is_root = geteuid().is_root();
    let directory = directory(|name| std::env::var_os(name), is_root).ok_or_else(|| {
        Error::invalid("no place for the store: set HOME, XDG_STATE_HOME or LEASEHOLD_STORE")
    })?;
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(|error| {
        let message = format!("cannot create {}: {error}", directory.display());
        Error::new(ErrorKind::Unusable, message).not_applied().caused_by(error)
    })?;
    Ok(directory.join("locks.db"))
}

/// The file's own path: all processes must meet at one folder of bells beside it, by
/// whichever link they came, and its file system is the one that counts. It need not be
/// there yet, so links to it are followed here where the kernel would not.
pub(super) fn resolve(path: &Path) -> Result<PathBuf> {
    let mut path = path.to_owned();
    for _ in 0..MOST_LINKS {
        if let Ok(path) = path.canonicalize() {
            return Ok(path);
        }
        let here = in_its_directory(&path)?;
        match fs::read_link(&here) {
            Ok(target) => path = here.with_file_name("").join(target),
            Err(_) => return Ok(here),
        }
    }
    let message = format!("{} is a link that leads nowhere", path.display());
    Err(Error::new(ErrorKind::Unusable, message).not_applied())
}

fn in_its_directory(path: &Path) -> Result<PathBuf> {
    let Some(file) = path.file_name() else {
        return Err(Error::invalid(format!("{:?} does not name a file", path.display())));
    };
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let full = directory.canonicalize().map_err(|error| {
        let message = format!(
            "there is no directory {}: {error}; create it, or choose another path",
            directory.display()
        );
        Error::new(ErrorKind::Unusable, message).not_applied().caused_by(error)
    })?;
    Ok(full.join(file))
}

fn directory(variable: impl Fn(&str) -> Option<OsString>, is_root: bool) -> Option<PathBuf> {
    // The XDG specification: a relative path is to be ignored.
    let absolute = |name| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|state| state.join("leasehold"))
        .or_else(|| is_root.then(|| PathBuf::from("/var/lib/leasehold")))
}

/// Creates the database's file, if it is not there. If this fails, SQLite tries again, and says
/// why.
pub(super) fn create(path: &Path) {
    let Some(folder) = path.parent().and_then(|folder| stat(folder).ok()) else { return };
    // Not opened: closing it would drop the locks of SQLite, which another thread may have it
    // open with already.
    let mode = Mode::from_raw_mode(0o644);
    if mknodat(CWD, path, FileType::RegularFile, mode, 0).is_ok() {
        let opened = Ours::open(CWD, path, FileType::RegularFile);
        report(path, opened.and_then(|file| file.open_up(&folder)));
    }
}

/// Gives the log and its index to the users of the database: SQLite copies its mode, but not its
/// group.
pub(super) fn share_log(path: &Path) {
    let Ok(database) = stat(path) else { return };
    for part in &parts(path)[1..] {
        let Ok(part) = Ours::open(CWD, part, FileType::RegularFile) else { continue };
        // A file with another mode is not SQLite's: someone may have moved it here.
        if part.found.st_mode & 0o777 == database.st_mode & 0o777 {
            part.give(database.st_gid);
        }
    }
}

/// Makes the folder of the bells, which this process just created, usable for the database's users.
pub(super) fn share_folder(folder: &OwnedFd, database: &Path) {
    let shared = Ours::open(folder, Path::new("."), FileType::Directory).and_then(|ours| {
        for entry in fs::read_dir(format!("/proc/self/fd/{}", folder.as_raw_fd()))? {
            // A folder with anything else in it was moved here in place of ours.
            if !entry?.file_type()?.is_socket() {
                return Err(io::ErrorKind::PermissionDenied.into());
            }
        }
        let rights = ours.join_group(database)?;
        ours.allow(0o700 | for_folders(rights))
    });
    report(database, shared);
}

/// Makes a socket in this folder, which this process just bound, usable for the database's users.
pub(super) fn share_socket(folder: &OwnedFd, socket: &str, database: &Path) {
    let shared = Ours::open(folder, Path::new(socket), FileType::Socket).and_then(|ours| {
        let rights = ours.join_group(database)?;
        ours.allow(rights)
    });
    report(database, shared);
}

fn report(path: &Path, shared: io::Result<()>) {
    if let Err(error) = shared {
        tracing::debug!(%error, path = %path.display(), "other users may not be able to use it");
    }
}

/// All of a folder for those who may read and write.
fn for_folders(rights: u32) -> u32 {
    [6, 3, 0].into_iter().filter(|at| (rights >> at) & 6 == 6).map(|at| 7 << at).sum()
}

/// A file of this user that the store created. The folder may be writable for others, who may
/// have put something else in its place: so it is held by a descriptor, and looked at first.
struct Ours {
    descriptor: OwnedFd,
    found: Stat,
}

impl Ours {
    fn open(folder: impl AsFd, path: &Path, kind: FileType) -> io::Result<Self> {
        // Closing a descriptor of this kind leaves SQLite's locks alone.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = openat(folder, path, flags, Mode::empty())?;
        let found = fstat(&descriptor)?;
        let ours = Uid::from_raw(found.st_uid) == geteuid()
            && FileType::from_raw_mode(found.st_mode) == kind
            // A second name may be anywhere. A folder has one for each folder in it.
            && (kind == FileType::Directory || found.st_nlink == 1);
        if !ours {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self { descriptor, found })
    }

    /// A new file gets what its folder gives. In a sticky folder (`/tmp`) everybody keeps to
    /// what is his own.
    fn open_up(&self, folder: &Stat) -> io::Result<()> {
        // A file with content is not the one that was just created.
        if folder.st_mode & STICKY != 0 || self.found.st_size != 0 {
            return Ok(());
        }
        let mut mode = self.found.st_mode & 0o666;
        if folder.st_mode & GROUP_WRITES != 0 && self.give(folder.st_gid) {
            mode |= 0o060;
        }
        if folder.st_mode & ALL_WRITE != 0 {
            mode |= 0o006;
        }
        self.allow(mode)
    }

    /// Gives it the database's group, and says who may read and write then.
    fn join_group(&self, database: &Path) -> io::Result<u32> {
        let database = stat(database)?;
        let rights = database.st_mode & 0o666;
        Ok(if self.give(database.st_gid) { rights } else { rights & 0o606 })
    }

    /// Whether it has this group now, to which one may have to belong.
    fn give(&self, group: u32) -> bool {
        let group_id = Some(Gid::from_raw(group));
        self.found.st_gid == group
            || chownat(&self.descriptor, "", None, group_id, AtFlags::EMPTY_PATH).is_ok()
    }

    fn allow(&self, mode: u32) -> io::Result<()> {
        if self.found.st_mode & 0o777 == mode {
            return Ok(());
        }
        // fchmod(2) wants a descriptor of another kind.
        let path = format!("/proc/self/fd/{}", self.descriptor.as_raw_fd());
        fs::set_permissions(path, Permissions::from_mode(mode))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(variables: &[(&str, &str)], is_root: bool) -> Option<PathBuf> {
        let find = |name: &str| variables.iter().find(|(n, _)| *n == name);
        directory(|name| find(name).map(|(_, value)| OsString::from(value)), is_root)
    }

    #[test]
    fn follows_the_users_environment() {
        let home = ("HOME", "/home/ada");
        assert_eq!(with(&[home], false), Some("/home/ada/.local/state/leasehold".into()));
        assert_eq!(with(&[home, ("XDG_STATE_HOME", "/s")], false), Some("/s/leasehold".into()));
        let relative = ("XDG_STATE_HOME", "state");
        assert_eq!(with(&[home, relative], false), Some("/home/ada/.local/state/leasehold".into()));
        assert_eq!(with(&[], true), Some("/var/lib/leasehold".into()));
        assert_eq!(with(&[], false), None);
    }
}
