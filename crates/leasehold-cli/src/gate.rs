//! `leasehold gate`: a proxy in front of a service that knows nothing of tokens. What is let
//! through is the library's business ([`leasehold::fence::http`]); here are sockets, the
//! upstream and the end.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, io, thread};

use hyper::Uri;
use leasehold::fence::http::{FenceLayer, SqliteMarks};
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use crate::args::Gate;
use crate::exit::{Failure, UNREACHABLE, USAGE, killed_by, tell};
use crate::plan::checked;
use crate::signals::Signals;
use underway::Underway;
use worker::Worker;

mod hops;
mod proxy;
mod underway;
mod upload;
mod upstream;
mod worker;

/// How long clients may go on to send their requests after a signal. The service may take its
/// time for what it has: when the next gate starts, nothing older may be under way.
const GRACE: Duration = Duration::from_secs(5);
/// For everything else.
const MARGIN: Duration = Duration::from_secs(1);
/// So many requests are named at the end.
const NAMED: usize = 5;
/// A pause after a failed accept: out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Lets requests through until a signal ends it.
pub(crate) fn gate(args: Gate) -> Result<u8, Failure> {
    let upstream = upstream(&args.upstream)?;
    let path = args.marks.clone().map_or_else(default_marks, Ok)?;
    let marks = SqliteMarks::open(&path);
    let marks = marks.map_err(|error| Failure::new(UNREACHABLE, error.to_string()))?;
    let mut fence = FenceLayer::new(marks).drain(args.drain).unfenced_reads(args.unfenced_reads);
    if !args.lock.is_empty() {
        let locks: Result<Vec<_>, _> = args.lock.iter().map(|lock| checked(lock)).collect();
        fence = fence.locks(locks?);
    }
    let broken = |error: io::Error| Failure::broken("cannot start", &error);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(broken)?.block_on(async {
        let mut signals = Signals::listen().map_err(broken)?;
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.map_err(|error| {
            Failure::broken(format!("cannot listen on {}", args.listen), &error)
        })?;
        let here = listener.local_addr().map_err(broken)?;
        let (running, mut ran) = mpsc::channel(1);
        let cores = thread::available_parallelism().map_or(1, |cores| cores.get());
        let workers = (0..cores)
            .map(|_| Worker::start(fence.clone(), upstream.clone(), &args, running.clone()));
        let workers = workers.collect::<io::Result<Vec<_>>>().map_err(broken)?;
        let underway: Vec<Underway> = workers.iter().map(Worker::underway).collect();
        drop(running);
        tell(format!("the gate is at http://{here}, in front of {}", args.upstream));
        tokio::select! {
            () = accept(listener, workers) => {}
            signal = signals.next() => tracing::info!(target: "leasehold", ?signal, "the gate closes"),
        }
        // The workers were dropped, and let nothing more through. They end with their last request;
        // after this time there can only be answers that their clients are slow to read.
        let left = || underway.iter().flat_map(Underway::describe).collect::<Vec<_>>();
        let limit = args.upstream_timeout.saturating_add(GRACE + MARGIN);
        if let count @ 1.. = left().len() {
            let most = humantime::format_duration(limit);
            tell(format!(
                "the gate closes, and waits at most {most} for requests that are under way \
                 ({count}); another signal ends it at once"
            ));
        }
        tokio::select! {
            _ = ran.recv() => Ok(0),
            () = tokio::time::sleep(limit) => Ok(0),
            signal = signals.next() => match left() {
                left if left.is_empty() => Ok(0),
                left => Err(Failure::new(killed_by(signal.as_raw()), unfinished(&left))),
            },
        }
    })
}

/// What the gate leaves behind that does not wait.
fn unfinished(left: &[String]) -> String {
    let (count, named) = (left.len(), &left[..left.len().min(NAMED)]);
    let more = if count > NAMED { "; and others" } else { "" };
    format!(
        "the gate ended while requests were under way ({count}): {}{more}; the service may still \
         act on them, so start no other gate in front of it before they are over, or a newer token \
         gets past them",
        named.join("; ")
    )
}

/// Gives each connection to the worker that has the fewest.
async fn accept(listener: TcpListener, workers: Vec<Worker>) {
    loop {
        let accepted = match listener.accept().await {
            Ok((stream, peer)) => match workers.iter().min_by_key(|worker| worker.load()) {
                Some(worker) => worker.take(stream, peer),
                None => return,
            },
            Err(error) => Err(error),
        };
        if let Err(error) = accepted {
            tracing::warn!(target: "leasehold", %error, "cannot accept a connection");
            tokio::time::sleep(ACCEPT_PAUSE).await;
        }
    }
}

/// An upstream's URL, without a path.
fn upstream(url: &str) -> Result<Uri, Failure> {
    let refuse = |why: &str| Failure::new(USAGE, format!("--upstream {url}: {why}"));
    let parsed: Uri = url.parse().map_err(|_| refuse("not a URL"))?;
    if parsed.scheme_str() != Some("http") {
        return Err(refuse(
            "write http://host:port; the gate speaks no TLS, keep it near the service",
        ));
    }
    if !matches!(parsed.path(), "" | "/") || parsed.query().is_some() {
        return Err(refuse("leave the path away: requests keep theirs"));
    }
    let authority = parsed.authority().ok_or_else(|| refuse("it has no host"))?;
    match authority.as_str().contains('@') {
        true => Err(refuse("leave the user name away: clients send their own credentials")),
        false => Ok(parsed),
    }
}

/// In this user's state directory.
fn default_marks() -> Result<PathBuf, Failure> {
    let state = env::var_os("XDG_STATE_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    let state = state.or_else(home).ok_or_else(|| {
        Failure::new(USAGE, "there is no HOME to keep the marks in; say where with --marks")
    })?;
    let folder = state.join("leasehold");
    // The user's own store is there, too: for this user only.
    let mut create = DirBuilder::new();
    create
        .recursive(true)
        .mode(0o700)
        .create(&folder)
        .map_err(|error| Failure::broken(format!("cannot create {}", folder.display()), &error))?;
    Ok(folder.join("gate.db"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        let authority = |url| upstream(url).unwrap().authority().unwrap().to_string();
        assert_eq!(authority("http://localhost:8080"), "localhost:8080");
        assert_eq!(authority("http://[::1]:80/"), "[::1]:80");
        for wrong in ["", "localhost:80", "https://x", "http://x/path", "http://u:p@x", "/path"] {
            assert!(upstream(wrong).is_err(), "{wrong:?}");
        }
    }
}
