//! Where the store lives: in full, and when nobody says so.

use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{Error, ErrorKind, Result};

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// The user's store: `locks.db` in the state directory, which is created if need be.
pub(super) fn default_path() -> Result<PathBuf> {
    let is_root = rustix::process::geteuid().is_root();
    let directory = directory(|name| std::env::var_os(name), is_root).ok_or_else(|| {
        Error::invalid("no place for the store: set HOME, XDG_STATE_HOME or LEASEHOLD_STORE")
    })?;
    DirBuilder::new().recursive(true).mode(0o700).create(&directory).map_err(|error| {
        let message = format!("cannot create {}: {error}", directory.display());
        Error::new(ErrorKind::Unusable, message).caused_by(error)
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
    Err(Error::new(ErrorKind::Unusable, message))
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
        Error::new(ErrorKind::Unusable, message).caused_by(error)
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
