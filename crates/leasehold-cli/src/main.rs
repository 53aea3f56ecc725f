//! The `leasehold` command: parse, resolve, run. What locks are is the library's
//! business; here are arguments, processes, signals, terminals and exit codes.

mod args;
mod child;
mod course;
mod exit;
mod plan;
mod run;
mod signals;
mod terminal;
mod trampoline;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use plan::Plan;

fn main() -> ExitCode {
    let code = match Cli::parse().command {
        Command::Run(args) => Plan::resolve(args).and_then(run::run),
        Command::Exec(args) => Err(trampoline::exec(args)),
    };
    code.map_or_else(|failure| failure.report(), ExitCode::from)
}
