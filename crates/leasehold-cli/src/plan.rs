//! What is to be done, resolved from the arguments: defaults that depend on each
//! other are filled in, and what cannot work is refused before anything happens.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use leasehold::{DEFAULT_TTL, Lock, Locks, Name};

use crate::args::Run;
use crate::config::Config;
use crate::exit::{Failure, USAGE};
use crate::program;
use crate::store::Store;

const DEFAULT_GRACE: Duration = Duration::from_secs(5);

/// A command to be run under a lock, and the terms.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: Name,
    pub(crate) store: Store,
    pub(crate) command: Vec<OsString>,
    pub(crate) grace: Duration,
    pub(crate) held_code: u8,
    pub(crate) renewed: bool,
    pub(crate) max_hold: Option<Duration>,
    ttl: Duration,
    wait: Option<Duration>,
}

impl Plan {
    pub(crate) fn resolve(mut args: Run, config: &Config) -> Result<Self, Failure> {
        let name = checked(&args.name)?;
        if let Some(program) = args.command.first() {
            program::check(program)?;
        }
        let wait = if args.no_wait { Some(Duration::ZERO) } else { args.wait.or(config.wait) };
        let ttl = args.ttl.or(config.ttl).unwrap_or(DEFAULT_TTL);
        args.grace = args.grace.or(config.grace);
        Ok(Self {
            grace: grace(&args, ttl)?,
            name,
            store: Store::resolve(args.on, config)?,
            command: args.command,
            held_code: args.exit_code,
            renewed: !args.no_renew,
            max_hold: args.max_hold,
            ttl,
            wait,
        })
    }

    /// What others read when they ask who holds the lock. Arguments may be secret.
    pub(crate) fn label(&self) -> String {
        let program = self.command.first().map(Path::new).and_then(Path::file_name);
        format!("leasehold run {}", program.unwrap_or_default().to_string_lossy())
    }

    /// The lock under the plan's terms.
    pub(crate) fn lock(&self, locks: &Locks) -> Lock {
        let mut lock = locks.lock(&self.name).ttl(self.ttl);
        if let Some(patience) = self.wait {
            lock = lock.wait(patience);
        }
        if let Some(cap) = self.max_hold {
            lock = lock.max_hold(cap);
        }
        if !self.renewed {
            lock = lock.no_renewal();
        }
        lock
    }
}

/// A name that every store can keep, or why this is none.
pub(crate) fn checked(name: &str) -> Result<Name, Failure> {
    Name::new(name).map_err(|invalid| Failure::new(USAGE, format!("{name:?}: {invalid}")))
}

/// The grace is taken off the time the command has, so it must leave some.
fn grace(args: &Run, ttl: Duration) -> Result<Duration, Failure> {
    let shortest = args.max_hold.map_or(ttl, |cap| cap.min(ttl));
    let Some(grace) = args.grace else { return Ok(DEFAULT_GRACE.min(shortest / 3)) };
    let whole_term = match (args.no_renew, args.max_hold) {
        (true, _) => shortest,
        (false, Some(cap)) => cap,
        (false, None) => return Ok(grace),
    };
    if grace >= whole_term {
        let message = format!(
            "a grace of {} leaves no time to work: the lock is held for {} at most; \
             use a shorter --grace or a longer term",
            humantime::format_duration(grace),
            humantime::format_duration(whole_term)
        );
        return Err(Failure::new(USAGE, message));
    }
    Ok(grace)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command};

    fn plan(line: &str) -> Result<Plan, Failure> {
        let words = ["leasehold", "run", "x"].into_iter().chain(line.split_whitespace());
        match Cli::try_parse_from(words.chain(["--", "/bin/true", "secret"])).unwrap().command {
            Command::Run(args) => Plan::resolve(args, &Config::default()),
            other => unreachable!("the line says run, not {other:?}"),
        }
    }

    #[test]
    fn the_default_grace_leaves_most_of_the_term() {
        assert_eq!(plan("").unwrap().grace, Duration::from_secs(5));
        assert_eq!(plan("--ttl 3s").unwrap().grace, Duration::from_secs(1));
        assert_eq!(plan("--max-hold 6s").unwrap().grace, Duration::from_secs(2));
    }

    #[test]
    fn a_grace_that_leaves_no_time_is_refused() {
        assert!(plan("--ttl 5s --no-renew --grace 5s").is_err());
        assert!(plan("--max-hold 5s --grace 6s").is_err());
        assert!(plan("--ttl 5s --grace 6s").is_ok(), "then the first doubt ends it");
    }

    #[test]
    fn the_label_names_the_program_and_not_its_arguments() {
        assert_eq!(plan("").unwrap().label(), "leasehold run true");
    }
}
