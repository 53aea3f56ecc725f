//! What can be typed: the arguments and their help. What they mean together is
//! resolved in [`plan`](crate::plan).

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};

use crate::exit::HELD;

/// Locks are leases: run a command while holding one.
#[derive(Debug, Parser)]
#[command(name = "leasehold", version, after_help = EXAMPLE)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Run(Run),
}

const EXAMPLE: &str = "\
Example:
  leasehold run nightly-report --wait 10s -- ./report.sh

No server is needed: the embedded store is the default. `leasehold run --help` says more.";

const RUN_HELP: &str = "\
Examples:
  leasehold run nightly-report --wait 10s -- ./report.sh
  leasehold run deploy --no-wait --max-hold 1h -- make deploy
  leasehold run import -- sh -c './import --fencing-token \"$LEASEHOLD_TOKEN\"'

The command finds in its environment:
  LEASEHOLD_LOCK   the lock's name
  LEASEHOLD_TOKEN  the fencing token, higher than every earlier holder's: give it to
                   the resource with every write, and let that refuse a lower one
  LEASEHOLD_OWNER  the unique id of this acquisition

The command runs in a process group of its own. TERM, INT, HUP, QUIT, USR1, USR2 and TSTP
are passed on to the group. When the lease is lost, or is in doubt with less than the grace
left, the group gets SIGTERM, then SIGKILL when the grace or the lease ends. The lock is
released when the whole group is gone, also when the command itself ended before.
When `leasehold` itself is killed (-9), the command is killed with it.

Not watched: processes that leave the group (setsid, daemons), and after a kill -9 of
`leasehold` the command's own children. Their writes are stopped by the token only.

Exit codes:
  the command's own; 128 + n when signal n ended it (or ended the wait for the lock)
  2    the arguments cannot work
  125  leasehold itself failed, for example could not start a process
  126  the command cannot be executed
  127  the command was not found
  201  the lock is held by another (--exit-code changes it)
  202  the lease was lost, or was about to end, while the command ran
  203  the store cannot be reached or used
  204  the store was refused as unsafe";

/// Run a command while holding a lock
///
/// Takes the lock NAME, runs the command, keeps the lease renewed meanwhile, and
/// releases it afterwards. Ends the command in time when the lease cannot be kept.
#[derive(Debug, Args)]
#[command(after_long_help = RUN_HELP, after_help = "`leasehold run --help` shows examples and exit codes.")]
pub(crate) struct Run {
    /// The lock's name
    pub(crate) name: String,

    /// How long the lease lasts without renewal: how soon others take over after a
    /// crash, and how long an outage of the store is survived
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = humantime::parse_duration)]
    pub(crate) ttl: Duration,

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

    /// The store that keeps the lock: `sqlite:`, `sqlite:/path/to/locks.db`
    // The value may carry a password: help must not print it.
    #[arg(
        long,
        value_name = "URL",
        env = "LEASEHOLD_STORE",
        hide_env_values = true,
        default_value = "sqlite:"
    )]
    pub(crate) store: String,

    /// The command and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    #[test]
    fn the_arguments_are_consistent() {
        super::Cli::command().debug_assert();
    }
}
