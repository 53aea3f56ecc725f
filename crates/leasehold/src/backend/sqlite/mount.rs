//! Whether a file is mounted by itself (`docker -v file:file`, a Kubernetes `subPath`).
//! Then the file alone is shared: SQLite's log and index lie beside its name, so each side
//! would have its own, and with them its own locks.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags, statx};
use rustix::io::Errno;

/// Whether this file is the root of a mount. The path is in full, and need not exist.
pub(super) fn is_root(path: &Path) -> bool {
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
        let code = match rest {
            [b'\\', a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..] => {
                Some((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'))
            }
            _ => None,
        };
        plain.push(code.unwrap_or(*first));
        rest = if code.is_some() { &rest[4..] } else { tail };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
