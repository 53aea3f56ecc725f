//! What can be typed: the arguments and their help. What they mean together is
//! resolved in [`plan`](crate::plan) and [`store`](crate::store).

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use leasehold::Consistency;

use crate::exit::HELD;
use crate::help;

/// Locks are leases: run a command while holding one, and see who holds what.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = help::LEASEHOLD)]
pub(crate) struct Cli {
    /// Log to stderr what happens to locks; -vv and -vvv say more
    // After the options of the command it is given to.
    #[arg(short, long, global = true, action = ArgAction::Count, display_order = 100)]
    pub(crate) verbose: u8,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
    Ls(List),
    Show(Show),
    Watch(Watch),
    Release(Release),
    Doctor(Doctor),
    Gate(Gate),
    Schema(Schema),
    Completions(Completions),
    Man(Man),
}

/// Which store.
#[derive(Debug, Args)]
pub(crate) struct OnStore {
    /// The store that keeps the locks: `sqlite:` (the default), `sqlite:/path/to/locks.db`.
    /// Instead of a secret write ${env:NAME} or ${file:/path}: others can read arguments
    // The value may carry a password: help must not print it.
    #[arg(long, value_name = "URL", env = "LEASEHOLD_STORE", hide_env_values = true)]
    pub(crate) store: Option<String>,

    /// Refuse a store that promises less
    #[arg(long, value_name = "LEVEL", env = "LEASEHOLD_REQUIRE", hide_env_values = true)]
    pub(crate) require: Option<Require>,
}

/// How strong a store must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Require {
    /// Every grant follows every earlier one, whatever fails
    Linearizable,
    /// A majority of independent servers
    Quorum,
    /// Any store
    BestEffort,
}

impl Require {
    pub(crate) fn consistency(self) -> Consistency {
        match self {
            Self::Linearizable => Consistency::Linearizable,
            Self::Quorum => Consistency::Quorum,
            Self::BestEffort => Consistency::BestEffort,
        }
    }
}

/// Run a command while holding a lock
///
/// Takes the lock NAME, runs the command, keeps the lease renewed meanwhile, and
/// releases it afterwards. Ends the command in time when the lease cannot be kept.
#[derive(Debug, Args)]
#[command(after_long_help = help::RUN, after_help = "`leasehold run --help` shows examples and exit codes.")]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: String,

    /// How long the lease lasts without renewal: how soon others take over after a
    /// crash, and how long an outage of the store is survived [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Option<Duration>,

    /// How long to wait while another holds the lock [default: for ever]
    #[arg(long, value_name = "DURATION", conflicts_with = "no_wait", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait: give up at once when another holds the lock
    #[arg(long)]
    pub(crate) no_wait: bool,

    /// How long the command may take to end after SIGTERM, before SIGKILL
    /// [default: 5s, but at most a third of the TTL or of --max-hold]
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) grace: Option<Duration>,

    /// The longest the lock is held, renewals included; the command is ended by then
    #[arg(long, value_name = "DURATION", value_parser = humantime::parse_duration)]
    pub(crate) max_hold: Option<Duration>,

    /// Do not renew: the TTL is all the time the command has
    #[arg(long)]
    pub(crate) no_renew: bool,

    /// The exit code when another holds the lock
    #[arg(long, value_name = "N", default_value_t = HELD)]
    pub(crate) exit_code: u8,

    #[command(flatten)]
    pub(crate) on: OnStore,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// List the locks that are held or waited for
#[derive(Debug, Args)]
#[command(after_help = help::LS)]
pub(crate) struct List {
    /// Only locks whose names begin so
    #[arg(default_value = "", hide_default_value = true)]
    pub(crate) prefix: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) on: OnStore,
}

/// Show one lock: who holds it, since when, who took it away last
#[derive(Debug, Args)]
#[command(after_help = help::SHOW)]
pub(crate) struct Show {
    /// The lock's name
    pub(crate) name: String,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) on: OnStore,
}

/// Print what happens to locks, until Ctrl-C
#[derive(Debug, Args)]
#[command(after_help = help::WATCH)]
pub(crate) struct Watch {
    /// The lock's name; all locks if there is none
    pub(crate) name: Option<String>,

    /// How often to look
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = pause)]
    pub(crate) every: Duration,

    /// Print JSON, a line for each change
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) on: OnStore,
}

/// Take a lock away from its holder
#[derive(Debug, Args)]
#[command(after_help = help::RELEASE)]
pub(crate) struct Release {
    /// The lock's name
    pub(crate) name: String,

    /// Really take it away: needed
    #[arg(long)]
    pub(crate) force: bool,

    /// Why, for the record and for the holder: needed
    #[arg(long, value_name = "TEXT")]
    pub(crate) reason: Option<String>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) on: OnStore,
}

/// Examine the store: what about it is unsafe, and what it promises
#[derive(Debug, Args)]
#[command(after_help = help::DOCTOR)]
pub(crate) struct Doctor {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Bring back nodes of a redlock that have lost their data, and wait until they vote
    #[arg(long)]
    pub(crate) repair: bool,

    #[command(flatten)]
    pub(crate) on: OnStore,
}

/// Stand in front of an HTTP service and turn late requests away
///
/// Every request needs the header `Fencing-Token: <lock>;<token>`. Once a request of a lock
/// was let through, no request with a lower token is; a newer request waits for the older
/// ones that are inside.
#[derive(Debug, Args)]
#[command(after_long_help = help::GATE, after_help = "`leasehold gate --help` shows examples and answers.")]
pub(crate) struct Gate {
    /// The service: http://host:port
    #[arg(long, value_name = "URL")]
    pub(crate) upstream: String,

    /// Where to listen, as IP:PORT; port 0 is any free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: SocketAddr,

    /// The file that keeps the highest token of each lock; one for each gate
    /// [default: gate.db in this user's state directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) marks: Option<PathBuf>,

    /// How long a newer request waits until older ones are answered
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) drain: Duration,

    /// How long the service may take to answer, or to take more of a body
    #[arg(long, value_name = "DURATION", default_value = "60s", value_parser = humantime::parse_duration)]
    pub(crate) upstream_timeout: Duration,

    /// Let GET, HEAD and OPTIONS through without a token
    #[arg(long)]
    pub(crate) unfenced_reads: bool,

    /// Take tokens of this lock only; may be given again [default: of any lock]
    #[arg(long, value_name = "NAME")]
    pub(crate) lock: Vec<String>,
}

/// Print the schema that a store needs, where it needs one
#[derive(Debug, Args)]
#[command(after_help = help::SCHEMA)]
pub(crate) struct Schema {
    /// The kind of store, as its URLs begin: postgres, sqlite … Default: that of the store
    pub(crate) kind: Option<String>,
    #[command(flatten)]
    pub(crate) on: OnStore,
}

/// Print a shell's completion script
#[derive(Debug, Args)]
#[command(after_help = help::COMPLETIONS)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Print the manual page, or write those of all commands
#[derive(Debug, Args)]
#[command(after_help = help::MAN)]
pub(crate) struct Man {
    /// Write a page for each command into this directory
    pub(crate) directory: Option<PathBuf>,
}

/// A pause that leaves the store some rest.
fn pause(text: &str) -> Result<Duration, String> {
    let pause = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    match pause < Duration::from_millis(10) {
        true => Err("at least 10ms".to_owned()),
        false => Ok(pause),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_arguments_are_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_an_example() {
        for command in Cli::command().get_subcommands() {
            let help = command.get_after_long_help().or(command.get_after_help());
            let help = help.map(ToString::to_string).unwrap_or_default();
            assert!(help.contains(&format!("leasehold {}", command.get_name())), "{command}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn any_pause_is_long_enough_or_refused(text in ".{0,20}|([0-9]{1,22}[ a-zµ.]{0,4}){1,3}") {
            if let Ok(pause) = pause(&text) {
                prop_assert!(pause >= Duration::from_millis(10));
            }
        }
    }
}
