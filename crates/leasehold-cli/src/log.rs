//! The library's log lines, on stderr, for who asks for them.

use std::env;
use std::io::{self, IsTerminal, Write};

use tracing_subscriber::EnvFilter;

use crate::exit::{Failure, USAGE};
use crate::outbox::{self, Line};
use crate::secrets;

/// Turns the log on, as `LEASEHOLD_LOG` says, else by the number of `-v`.
pub(crate) fn init(verbosity: u8) -> Result<(), Failure> {
    let wanted = env::var("LEASEHOLD_LOG").ok().filter(|filter| !filter.is_empty());
    let filter = match (wanted, verbosity) {
        (Some(filter), _) => filter,
        (None, 0) => return Ok(()),
        (None, 1) => "leasehold=info".to_owned(),
        (None, 2) => "leasehold=debug".to_owned(),
        (None, _) => "leasehold=trace".to_owned(),
    };
    let filter = EnvFilter::try_new(&filter).map_err(|error| {
        let message = format!("LEASEHOLD_LOG: {error}; write for example LEASEHOLD_LOG=info");
        Failure::new(USAGE, message)
    })?;
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(|| Lines);
    log.with_ansi(io::stderr().is_terminal()).with_target(false).init();
    Ok(())
}

/// A line at a time, without secrets.
struct Lines;

impl Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        outbox::send(Line::Log, secrets::blot(&String::from_utf8_lossy(line)));
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
