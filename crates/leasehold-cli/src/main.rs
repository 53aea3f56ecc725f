//! The `leasehold` command: parse, resolve, run. What locks are is the library's
//! business; here are arguments, processes, signals, terminals and exit codes.

mod args;
mod child;
mod course;
mod exit;
mod go;
mod plan;
mod program;
mod run;
mod signals;
mod terminal;
mod trampoline;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use plan::Plan;
use trampoline::Trampoline;

fn main() -> ExitCode {
    let code = match Trampoline::from_args() {
        Some(trampoline) => trampoline.exec(),
        None => obey(Cli::parse()),
    };
    code.map_or_else(|failure| failure.report(), ExitCode::from)
}

fn obey(cli: Cli) -> Result<u8, exit::Failure> {
    match cli.command {
        Command::Run(args) => Plan::resolve(args).and_then(run::run),
    }
}
