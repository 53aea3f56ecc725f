//! The `leasehold` command: parse, resolve, run. What locks are is the library's
//! business; here are arguments, processes, signals, terminals and exit codes.

mod args;
mod change;
mod child;
mod config;
mod doctor;
mod exit;
mod force;
mod formatting;
mod gate;
mod help;
mod list;
mod log;
mod manual;
mod members;
mod nested;
mod outbox;
mod plan;
mod program;
mod report;
mod run;
mod schema;
mod screen;
mod secrets;
mod show;
mod signals;
mod start_handshake;
mod store;
mod supervisor;
mod table;
mod terminal;
mod termination;
mod trampoline;
mod watch;

use std::panic;
use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use config::Config;
use plan::Plan;
use trampoline::Trampoline;

fn main() -> ExitCode {
    let _last_words = outbox::Flush;
    // The usual hook writes to stderr itself, and would wait for its reader.
    panic::set_hook(Box::new(exit::tell_panic));
    let code = match Trampoline::from_args() {
        Some(trampoline) => trampoline.exec(),
        None => dispatch(Cli::parse()),
    };
    code.map_or_else(|failure| failure.report(), ExitCode::from)
}

fn dispatch(cli: Cli) -> Result<u8, exit::Failure> {
    log::init(cli.verbose)?;
    let config = Config::load;
    match cli.command {
        Command::Run(args) => run::run(Plan::resolve(args, &config()?)?),
        Command::Ls(args) => list::list(args, &config()?),
        Command::Show(args) => show::show(args, &config()?),
        Command::Watch(args) => watch::watch(args, &config()?),
        Command::Release(args) => force::release(args, &config()?),
        Command::Doctor(args) => doctor::doctor(args, &config()?),
        Command::Gate(args) => gate::gate(args),
        Command::Schema(args) => schema::schema(args, &config()?),
        Command::Completions(args) => manual::completions(args),
        Command::Man(args) => manual::man(args),
    }
}
