//! Which file systems may carry the store. On one that another kernel mounts too,
//! SQLite's shared memory and locks do not reach the other side, and "another boot
//! id" would mean another live host: two holders.

use std::path::Path;

use super::parts;
use crate::error::{Error, ErrorKind, Result};

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

/// Refuses a database on a file system that other kernels see. Its files count as well as
/// their directory: each may be a mount by itself.
pub(super) fn check(database: &Path) -> Result<()> {
    let directory = database.parent().unwrap_or(database);
    let found = rustix::fs::statfs(directory).map_err(|error| {
        let shown = directory.display();
        let message = format!("cannot look at {shown}: {error}; the directory must exist");
        Error::new(ErrorKind::Unusable, message).caused_by(error)
    })?;
    refuse_shared(directory, found.f_type as u32)?;
    for part in parts(database) {
        if let Ok(found) = rustix::fs::statfs(&part) {
            refuse_shared(&part, found.f_type as u32)?;
        }
    }
    Ok(())
}

fn refuse_shared(path: &Path, magic: u32) -> Result<()> {
    let Some(kind) = shared(magic) else { return Ok(()) };
    let message = format!(
        "{} is on a shared file system, {kind}: locks there do not exclude other hosts; use a \
         path on a local disk, or a server (Redis, PostgreSQL, etcd) for locks between hosts",
        path.display()
    );
    Err(Error::new(ErrorKind::Refused, message))
}

/// The file system's magic number, and how many bytes are free for this user.
pub(super) fn look(directory: &Path) -> Option<(u32, u64)> {
    let found = rustix::fs::statfs(directory).ok()?;
    let free = (found.f_bavail as u64).saturating_mul(found.f_bsize as u64);
    Some((found.f_type as u32, free))
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(check(Path::new("/nowhere/at/all")).is_err());
    }
}
