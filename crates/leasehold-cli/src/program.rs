//! Whether the command can be found and executed: asked before the lock, since nobody
//! should wait for a typing error.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};
use rustix::io::Errno;

use crate::exit::{Failure, NOT_EXECUTABLE, NOT_FOUND};

/// Where a program is looked for when there is no PATH, as `execvp` does.
const NO_PATH: &str = "/bin:/usr/bin";

/// Looks for the program as `exec` will. What only `exec` can know is left to it.
pub(crate) fn check(program: &OsStr) -> Result<(), Failure> {
    let mut worst = not_found(program);
    for candidate in candidates(program, env::var_os("PATH")) {
        match look(&candidate) {
            Ok(()) => return Ok(()),
            Err(Errno::ACCESS) => worst = not_executable(program, &Errno::ACCESS.into()),
            Err(_) => {}
        }
    }
    Err(worst)
}

/// Why `exec` failed.
pub(crate) fn not_run(program: &OsStr, error: &io::Error) -> Failure {
    match error.kind() {
        ErrorKind::NotFound => not_found(program),
        _ => not_executable(program, error),
    }
}

fn candidates(program: &OsStr, path: Option<OsString>) -> Vec<PathBuf> {
    // Without a name every folder of the path would be a candidate.
    if program.is_empty() || program.as_bytes().contains(&b'/') {
        return vec![program.into()];
    }
    let path = path.unwrap_or_else(|| NO_PATH.into());
    env::split_paths(&path).map(|folder| folder.join(program)).collect()
}

fn look(candidate: &Path) -> Result<(), Errno> {
    access(candidate, Access::EXEC_OK)?;
    // A directory may be "executable" as well.
    if candidate.is_dir() { Err(Errno::ACCESS) } else { Ok(()) }
}

fn not_found(program: &OsStr) -> Failure {
    let message = format!(
        "command {program:?} not found; check its name, PATH, and its first line if it is a script"
    );
    Failure::new(NOT_FOUND, message)
}

fn not_executable(program: &OsStr, error: &io::Error) -> Failure {
    let message = format!("cannot execute {program:?}: {error}; is it a program, and executable?");
    Failure::new(NOT_EXECUTABLE, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_looked_for_as_exec_does() {
        assert!(check(OsStr::new("sh")).is_ok());
        assert!(check(OsStr::new("/bin/sh")).is_ok());
        for nothing in ["no-such-command", "/no/such/command", "", "/", "/etc/passwd"] {
            assert!(check(OsStr::new(nothing)).is_err(), "{nothing:?}");
        }
    }

    #[test]
    fn a_slash_keeps_it_from_the_path() {
        let path = || Some(OsString::from("/a::/b"));
        assert_eq!(candidates(OsStr::new("x/y"), path()), [PathBuf::from("x/y")]);
        let found = candidates(OsStr::new("x"), path());
        assert_eq!(found, ["/a/x", "x", "/b/x"].map(PathBuf::from));
    }
}
