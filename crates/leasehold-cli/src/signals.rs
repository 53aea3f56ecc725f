//! The signals that leasehold receives for the command.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// What ends the wait for the lock, and is passed on once the command runs.
const PASSED_ON: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals to this process, from the moment this was made.
#[derive(Debug)]
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    pub(crate) fn listen() -> io::Result<Self> {
        let mut signals = Self(Vec::new());
        for signal in PASSED_ON {
            signals.also(signal)?;
        }
        Ok(signals)
    }

    /// Listens to one more, unless whoever started us had it ignored (`nohup`, a
    /// shell's background job): then it stays so, for the command too.
    pub(crate) fn also(&mut self, signal: Signal) -> io::Result<()> {
        if !is_ignored(signal) {
            let kind = SignalKind::from_raw(signal.as_raw());
            self.0.push((signal, unix::signal(kind)?));
        }
        Ok(())
    }

    /// The next signal. Cancel safe.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.0 {
                if let Poll::Ready(Some(())) = stream.poll_recv(cx) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Whether this process ignores the signal. A handler installed once would hide it.
fn is_ignored(signal: Signal) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal.as_raw() - 1) & 1 == 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_seen() {
        // The Rust runtime ignores this one at start.
        assert!(is_ignored(Signal::PIPE));
        assert!(!is_ignored(Signal::USR2));
    }
}
