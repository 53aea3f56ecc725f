//! Who is behind a lease: for people who ask "who holds it?".

use std::fmt;
use std::time::SystemTime;

/// The process behind a lease.
///
/// It serves people and, on the embedded store, tells whether the process is
/// still there. It proves nothing: ownership is the [`Owner`](crate::Owner)'s.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The host's name.
    pub host: String,
    /// The process id, in its own pid namespace.
    pub pid: u32,
    /// What the process calls itself; by default the program's name.
    pub label: String,
    /// A process group that acts under its leases, besides the process itself.
    pub process_group: Option<u32>,
}

impl Holder {
    /// A holder with these parts, as a store reads them back.
    pub fn new(host: impl Into<String>, pid: u32, label: impl Into<String>) -> Self {
        Self { host: host.into(), pid, label: label.into(), process_group: None }
    }

    /// This process, under the program's name.
    pub fn this_process() -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let program = std::env::current_exe()
            .ok()
            .and_then(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .unwrap_or_else(|| "unknown".to_owned());
        Self::new(host, std::process::id(), program)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (pid {} on {})", self.label, self.pid, self.host)
    }
}

/// A lease as others see it: who holds the lock, since when.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct HeldBy {
    /// Who; `None` for a foreign client that says nothing about itself.
    pub holder: Option<Holder>,
    /// Since when, by the wall clock of the store or its client.
    pub since: Option<SystemTime>,
    /// Whether the store keeps it for ever, as Redis does with a foreign client's key that was set
    /// without an expiry: only that client ends it, or a release by force.
    pub never_expires: bool,
}

impl HeldBy {
    /// A description of the present holder.
    pub fn new(holder: Option<Holder>, since: Option<SystemTime>) -> Self {
        Self { holder, since, never_expires: false }
    }

    /// The same, of a lock that [never expires](HeldBy::never_expires).
    pub fn without_end(self) -> Self {
        Self { never_expires: true, ..self }
    }
}

impl fmt::Display for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.holder {
            Some(holder) => fmt::Display::fmt(holder, f)?,
            None => f.write_str("a client that does not say who it is")?,
        }
        if let Some(age) = self.since.and_then(|since| since.elapsed().ok()) {
            write!(f, " for {:.1} s", age.as_secs_f64())?;
        }
        if self.never_expires {
            f.write_str(" (never expires; release --force)")?;
        }
        Ok(())
    }
}
