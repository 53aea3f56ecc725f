//! Who may use the files: those who may use their folder. The umask (or the folder's default
//! ACL) decides as for any file; where the folder is writable for its group or for all, so is the
//! store in it, whatever the umask is. SQLite alone would let no second user write.

use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Gid, Mode, OFlags, Stat, Uid, chownat, fstat, mknodat, open, stat,
};
use rustix::process::geteuid;

use super::parts;

const STICKY: u32 = 0o1000;
const GROUP_WRITES: u32 = 0o020;
const ALL_WRITE: u32 = 0o002;

/// Creates the database's file, if it is not there. What fails here SQLite tries again, and
/// says why.
pub(super) fn create(path: &Path) {
    let Some(folder) = path.parent().and_then(|folder| stat(folder).ok()) else { return };
    // Not opened: closing it would drop the locks of SQLite, which another thread may have it
    // open with already.
    let mode = Mode::from_raw_mode(0o666);
    if mknodat(CWD, path, FileType::RegularFile, mode, 0).is_ok() {
        let _ = Ours::open(path).and_then(|file| file.open_up(&folder));
    }
}

/// Gives the log and its index to those who may use the database: SQLite copies its mode, but
/// not its group.
pub(super) fn share_log(path: &Path) {
    for part in &parts(path)[1..] {
        follow(part, path);
    }
}

/// Makes a file, a socket or a folder of ours usable for those who may use the database.
pub(super) fn follow(part: &Path, database: &Path) {
    let followed = stat(database).map_err(io::Error::from).and_then(|database| {
        let part = Ours::open(part)?;
        part.give(Some(database.st_uid).filter(|_| geteuid().is_root()), database.st_gid);
        let rights = database.st_mode & 0o666;
        part.allow(match FileType::from_raw_mode(part.found.st_mode) {
            FileType::Directory => 0o700 | for_folders(rights),
            _ => rights,
        })
    });
    if let Err(error) = followed {
        tracing::debug!(%error, part = %part.display(), "other users may not be able to use it");
    }
}

/// All of a folder for those who may read and write.
fn for_folders(rights: u32) -> u32 {
    [6, 3, 0].into_iter().filter(|at| (rights >> at) & 6 == 6).map(|at| 7 << at).sum()
}

/// A file of this user. The folder may be writable for others, who may have put a link to
/// something else in its place: so it is held by a descriptor, and looked at first.
struct Ours {
    descriptor: OwnedFd,
    found: Stat,
}

impl Ours {
    fn open(path: &Path) -> io::Result<Self> {
        // Closing a descriptor of this kind leaves SQLite's locks alone.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = open(path, flags, Mode::empty())?;
        let found = fstat(&descriptor)?;
        let ours = Uid::from_raw(found.st_uid) == geteuid();
        if !ours || FileType::from_raw_mode(found.st_mode) == FileType::Symlink {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Self { descriptor, found })
    }

    /// A new file gets what its folder gives. In a sticky folder (`/tmp`) everybody keeps to
    /// what is his own.
    fn open_up(&self, folder: &Stat) -> io::Result<()> {
        if folder.st_mode & STICKY != 0 {
            return Ok(());
        }
        let mut mode = self.found.st_mode & 0o666;
        if folder.st_mode & GROUP_WRITES != 0 && self.give(None, folder.st_gid) {
            mode |= 0o060;
        }
        if folder.st_mode & ALL_WRITE != 0 {
            mode |= 0o006;
        }
        self.allow(mode)
    }

    /// Whether it has this group now, to which one may have to belong.
    fn give(&self, owner: Option<u32>, group: u32) -> bool {
        let (owner, group_id) = (owner.map(Uid::from_raw), Some(Gid::from_raw(group)));
        let has_owner = owner.is_none_or(|owner| owner.as_raw() == self.found.st_uid);
        (has_owner && self.found.st_gid == group)
            || chownat(&self.descriptor, "", owner, group_id, AtFlags::EMPTY_PATH).is_ok()
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
