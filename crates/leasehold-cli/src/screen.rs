//! Standard output: how wide it is, and that it may be closed.

use std::env;
use std::io::{self, ErrorKind, IsTerminal, Write};

use rustix::termios::tcgetwinsize;
use serde::Serialize;

use crate::exit::Failure;

/// The columns of the terminal, else what `COLUMNS` says; `None`: as wide as it takes.
pub(crate) fn width() -> Option<usize> {
    let stdout = io::stdout();
    let terminal = stdout.is_terminal().then(|| tcgetwinsize(&stdout).ok()).flatten();
    let terminal = terminal.map(|size| usize::from(size.ws_col));
    let said = || env::var("COLUMNS").ok()?.trim().parse().ok();
    terminal.filter(|columns| *columns > 0).or_else(said).filter(|columns| *columns > 0)
}

/// Writes it out; whether anyone still reads.
pub(crate) fn print(text: &str) -> Result<bool, Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::broken("cannot write the output", &error)),
    }
}

/// Writes a JSON document, for programs and the odd reader.
pub(crate) fn print_json(document: &impl Serialize) -> Result<bool, Failure> {
    let text = serde_json::to_string_pretty(document);
    let text = text.map_err(|error| Failure::broken("cannot write the output", &error))?;
    print(&(text + "\n"))
}

/// A JSON document in one line.
pub(crate) fn json_line(document: &impl Serialize) -> Result<String, Failure> {
    let text = serde_json::to_string(document);
    let text = text.map_err(|error| Failure::broken("cannot write the output", &error))?;
    Ok(text + "\n")
}
