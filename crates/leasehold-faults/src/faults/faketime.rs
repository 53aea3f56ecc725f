//! A server with a wrong wall clock, by libfaketime: for stores that take the time from it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// Where distributions put the library.
const PLACES: [&str; 4] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketime.so.1",
    "/usr/lib64/faketime/libfaketime.so.1",
    "/usr/lib/faketime/libfaketime.so.1",
];

/// A wall clock that can be set while its process runs.
#[derive(Debug)]
pub struct FakeTime {
    library: &'static str,
    file: PathBuf,
}

impl FakeTime {
    /// A clock that is set by a file in `folder`, or why there cannot be one.
    pub fn new(folder: &Path) -> Result<Self> {
        let library = PLACES.into_iter().find(|place| Path::new(place).exists());
        let library = library.context("libfaketime is not installed (Debian: libfaketime)")?;
        let fake = Self { library, file: folder.join("faketime") };
        fake.set(0)?;
        Ok(fake)
    }

    /// Makes a command's process see this clock. Only the wall clock: waiting and timers stay true.
    pub fn apply(&self, command: &mut Command) {
        command.envs(self.variables());
    }

    /// What runs a program so that it sees this clock: words to put in front of it.
    pub fn wrapper(&self) -> Vec<String> {
        let variables = self.variables().map(|(name, value)| format!("{name}={value}"));
        std::iter::once("env".to_owned()).chain(variables).collect()
    }

    fn variables(&self) -> impl Iterator<Item = (&'static str, String)> {
        let file = self.file.display().to_string();
        let truly = || "1".to_owned();
        [
            // The C library's own allocator goes before others: jemalloc, which Redis uses, asks for
            // the time while the faked clock is still being set up, and both wait for ever.
            ("LD_PRELOAD", format!("{}:libc.so.6", self.library)),
            ("FAKETIME_TIMESTAMP_FILE", file),
            ("FAKETIME_NO_CACHE", truly()),
            ("FAKETIME_FMT", "%s".to_owned()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", truly()),
        ]
        .into_iter()
    }

    /// Sets it this many seconds ahead of the true one, or behind it.
    pub fn set(&self, seconds: i64) -> Result<()> {
        self.write(&format!("{seconds:+}s\n"))
    }

    /// Stops it this many seconds after 1970 began, until it is set again.
    pub fn stop_at(&self, seconds: u64) -> Result<()> {
        self.write(&format!("{seconds}\n"))
    }

    /// The file is read whenever somebody looks at the clock: it is never half written.
    fn write(&self, setting: &str) -> Result<()> {
        let fresh = self.file.with_extension("fresh");
        std::fs::write(&fresh, setting)?;
        Ok(std::fs::rename(fresh, &self.file)?)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{SystemTime, UNIX_EPOCH};

    use super::*;

    #[test]
    fn a_process_sees_the_clock_that_was_set() {
        let folder = tempfile::tempdir().unwrap();
        let fake = FakeTime::new(folder.path()).expect("scripts/test installs libfaketime");
        fake.set(-86_400).unwrap();
        let mut date = Command::new("date");
        fake.apply(date.arg("+%s"));
        let seen = String::from_utf8(date.output().unwrap().stdout).unwrap();
        let seen: u64 = seen.trim().parse().unwrap();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        assert!((86_000..87_000).contains(&(now - seen)));
    }

    #[test]
    fn a_clock_that_was_stopped_stands() {
        let folder = tempfile::tempdir().unwrap();
        let fake = FakeTime::new(folder.path()).expect("scripts/test installs libfaketime");
        fake.stop_at(1_900_000_000).unwrap();
        let mut date = Command::new("date");
        fake.apply(date.arg("+%s.%N"));
        let seen = String::from_utf8(date.output().unwrap().stdout).unwrap();
        assert_eq!(seen.trim(), "1900000000.000000000");
    }
}
