//! Which file the store is, and whether it may be one. SQLite goes on with a file that was
//! removed or replaced, and later processes then meet at another one. This cannot be prevented,
//! but it is noticed: then all locks of this store are gone.

use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statfs, statx};
use rustix::io::Errno;

use super::path::parts;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// How often to look: far less often than a request, far more often than a renewal.
pub(super) const INTERVAL: Duration = Duration::from_secs(1);

/// The file that was opened, and the log and the index that SQLite keeps beside it: removing
/// only one of those parts the processes just as well.
#[derive(Debug)]
pub(super) struct OpenedFile {
    path: PathBuf,
    /// Each with its device and inode. They stay while a connection is open.
    parts: Vec<(PathBuf, (u64, u64))>,
    /// The process that opened it.
    process: u32,
    /// In nanoseconds since boot.
    look_at: AtomicU64,
    /// The first of them that was found to be gone. That is final: processes that came meanwhile
    /// met elsewhere.
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
            // A child inherits the descriptors, but neither SQLite's locks nor the threads.
            let message = format!(
                "this process was forked after it opened {}; open the store after the fork",
                self.path.display()
            );
            return Err(Error::new(ErrorKind::Refused, message));
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

/// Refuses a file that is mounted by itself, alone or with its log (`docker -v file:file`, a
/// Kubernetes `subPath`): SQLite's log and index lie beside its name, so each side would have its
/// own, and with them its own locks.
pub(super) fn refuse_mounts(path: &Path) -> Result<()> {
    let Some(part) = parts(path).into_iter().find(|part| is_root(part)) else {
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
    Error::new(ErrorKind::Gone, message).not_applied()
}

/// Whether this file is the root of a mount. The path is in full, and need not exist.
fn is_root(path: &Path) -> bool {
    const ROOT: StatxAttributes = StatxAttributes::MOUNT_ROOT;
    match statx(CWD, path, AtFlags::empty(), StatxFlags::empty()) {
        Ok(found) if found.stx_attributes_mask.contains(ROOT) => {
            found.stx_attributes.contains(ROOT)
        }
        Err(Errno::NOENT) => false,
        // Before Linux 5.8 the kernel does not say, and a sandbox may forbid the question.
        _ => fs::read("/proc/self/mountinfo").is_ok_and(|mounts| is_listed(&mounts, path)),
    }
}

/// Whether `mountinfo` (see proc(5)) has a mount at this path: its fifth field.
fn is_listed(mountinfo: &[u8], path: &Path) -> bool {
    let points = mountinfo
        .split(|byte| *byte == b'\n')
        .filter_map(|line| line.split(|byte| *byte == b' ').nth(4));
    points.map(unescaped).any(|point| point == path.as_os_str().as_bytes())
}

/// Blanks and backslashes are written as a backslash and three octal digits.
fn unescaped(field: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        let (byte, tail) = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..] => {
                ((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'), tail)
            }
            _ => (*first, tail),
        };
        plain.push(byte);
        rest = tail;
    }
    plain
}

/// File systems by their magic number: `statfs(2)`, linux/magic.h.
const SHARED: &[(u32, &str)] = &[
    (0x6969, "NFS"),
    (0x517B, "SMB"),
    (0xFE53_4D42, "SMB"),
    (0xFF53_4D42, "CIFS"),
    (0x0102_1997, "9p"),
    (0x6573_5546, "FUSE (sshfs, GlusterFS, virtiofs, …)"),
    (0x00C3_6400, "Ceph"),
    (0x0BD0_0BD0, "Lustre"),
    (0x7461_636F, "OCFS2"),
    (0x0116_1970, "GFS2"),
    (0x5346_414F, "AFS"),
    (0x6B41_4653, "AFS"),
    (0x7375_7245, "Coda"),
    (0x564C, "NCP"),
    (0x786F_4256, "VirtualBox shared folder"),
    (0xBACB_ACBC, "VMware shared folder"),
    (0x4750_4653, "GPFS"),
    (0x4750_4653 + 1, "GPFS"),
    (0x1983_0326, "BeeGFS"),
    (0xAAD7_AAEA, "PanFS"),
    (0x2003_0528, "OrangeFS"),
];

/// The name of a file system that is shared with another kernel.
fn shared(magic: u32) -> Option<&'static str> {
    SHARED.iter().find(|(number, _)| *number == magic).map(|(_, name)| *name)
}

/// Refuses a database on a file system that other kernels see. SQLite's shared memory and locks
/// do not reach the other side, and "another boot id" would mean another live host: two holders.
/// The files count as well as their directory: each may be a mount by itself.
pub(super) fn refuse_shared_disks(database: &Path) -> Result<()> {
    let directory = database.parent().unwrap_or(database);
    let found = statfs(directory).map_err(|error| {
        let shown = directory.display();
        let message = format!("cannot look at {shown}: {error}; the directory must exist");
        Error::new(ErrorKind::Unusable, message).not_applied().caused_by(error)
    })?;
    let parts = parts(database);
    let others = parts.iter().filter_map(|part| Some((part.as_path(), statfs(part).ok()?)));
    for (path, found) in std::iter::once((directory, found)).chain(others) {
        if let Some(kind) = shared(found.f_type as u32) {
            let message = format!(
                "{} is on a shared file system, {kind}: locks there do not exclude other hosts; \
                 use a path on a local disk, or a server (Redis, PostgreSQL, etcd) for locks \
                 between hosts",
                path.display()
            );
            return Err(Error::new(ErrorKind::Refused, message));
        }
    }
    Ok(())
}

/// The file system's magic number, and how many bytes are free for this user.
pub(super) fn disk(directory: &Path) -> Option<(u32, u64)> {
    let found = statfs(directory).ok()?;
    let free = (found.f_bavail as u64).saturating_mul(found.f_bsize as u64);
    Some((found.f_type as u32, free))
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

    #[test]
    fn a_mount_is_told_from_a_plain_file() {
        assert!(is_root(Path::new("/proc")));
        assert!(!is_root(Path::new("/proc/self/stat")));
        assert!(!is_root(Path::new("/proc/no/such/file")));
    }

    /// What is left to ask on a kernel before 5.8.
    #[test]
    fn a_mount_is_found_in_the_kernels_list() {
        let mounts = b"22 1 0:21 / /proc rw - proc proc rw\n\
                       81 22 8:1 /h/l.db /c\\040d/l\\134.db rw,relatime - ext4 /dev/sda1 rw\n";
        assert!(is_listed(mounts, Path::new("/c d/l\\.db")));
        assert!(!is_listed(mounts, Path::new("/h/l.db")));
        let ours = fs::read("/proc/self/mountinfo").unwrap();
        assert!(is_listed(&ours, Path::new("/proc")));
    }

    #[test]
    fn local_disks_pass_and_shared_ones_do_not() {
        for (local, name) in
            [(0xEF53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683E, "btrfs"), (0x0102_1994, "tmpfs")]
        {
            assert_eq!(shared(local), None, "{name}");
        }
        assert_eq!(shared(0x794C_7630), None, "overlayfs");
        assert_eq!(shared(0x6969), Some("NFS"));
        assert!(shared(0x6573_5546).is_some_and(|name| name.starts_with("FUSE")));
        assert!(refuse_shared_disks(Path::new("/nowhere/at/all")).is_err());
    }
}
