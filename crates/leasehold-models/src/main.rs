//! `leasehold-models`: explores the models of Leasehold's protocols.

use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use leasehold_models::catalogue::{self, Case, Size};

/// Explores the models of Leasehold's protocols.
#[derive(Debug, Parser)]
#[command(version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Explores a model: all that must hold of it, or one variant.
    ///
    /// Ends with 0 if what must hold does, and what must break breaks as it should.
    Check {
        /// Which model (`list` names them).
        model: String,
        /// Which variant of it; without: all that must hold.
        #[arg(long, short)]
        variant: Option<String>,
        /// How many nodes.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=5))]
        nodes: Option<u8>,
        /// How many attempts, or clients in the queue.
        #[arg(long, value_parser = clap::value_parser!(u8).range(1..=4))]
        attempts: Option<u8>,
    },
    /// Names the models and their variants.
    List,
}

fn main() -> ExitCode {
    match Args::parse().command {
        Command::List => {
            list();
            ExitCode::SUCCESS
        }
        Command::Check { model, variant, nodes, attempts } => {
            let chosen = |case: &&Case| match &variant {
                Some(variant) => case.model == model && case.variant == *variant,
                None => case.model == model && case.breaks.is_none(),
            };
            let cases: Vec<&Case> = catalogue::all().filter(chosen).collect();
            if cases.is_empty() {
                let known = catalogue::all().any(|case| case.model == model);
                let missing = match variant {
                    Some(variant) if known => format!("no variant {variant:?} of {model}"),
                    _ => format!("no model {model:?}"),
                };
                eprintln!("there is {missing}; `leasehold-models list` names them all");
                return ExitCode::from(2);
            }
            let mut code = ExitCode::SUCCESS;
            for case in cases {
                let nodes = nodes.map_or(case.size.nodes, usize::from);
                let attempts = attempts.map_or(case.size.attempts, usize::from);
                let outcome = case.run(Size::new(nodes, attempts));
                say(&case.report(&outcome));
                if let Err(error) = case.judge(&outcome) {
                    eprintln!("{error}");
                    code = ExitCode::FAILURE;
                }
            }
            code
        }
    }
}

fn list() {
    let mut model = "";
    for case in catalogue::all() {
        if case.model != model {
            model = case.model;
            say(model);
        }
        let Size { nodes, attempts } = case.size;
        let by_hand = if case.tested { "" } else { "; not among the tests" };
        say(&format!("  {:<24} {} ({nodes}×{attempts}{by_hand})", case.variant, case.what));
        if let Some(property) = case.breaks {
            say(&format!("  {:<24} must break {property}", ""));
        }
    }
}

/// A reader that has gone away (`| head`) is no reason to panic.
fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
