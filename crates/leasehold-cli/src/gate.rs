//! `leasehold gate`: a proxy in front of a service that knows nothing of tokens. What is let
//! through is the library's business ([`leasehold::fence::http`]); here are sockets, the
//! upstream and the end.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs, io};

use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold::fence::http::{FenceLayer, FenceService, SqliteMarks};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tower::{Layer, Service};

use crate::args::Gate;
use crate::exit::{Failure, UNREACHABLE, USAGE, tell};
use crate::plan::checked;
use crate::signals::Signals;
use proxy::Proxy;

mod hops;
mod proxy;
mod upload;

/// How long requests that are under way have to end after a signal.
const GRACE: Duration = Duration::from_secs(10);
/// A pause after a failed accept: out of descriptors, most likely.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Lets requests through until a signal ends it.
pub(crate) fn gate(args: Gate) -> Result<u8, Failure> {
    let upstream = authority(&args.upstream)?;
    let path = args.marks.clone().map_or_else(default_marks, Ok)?;
    let marks = SqliteMarks::open(&path);
    let marks = marks.map_err(|error| Failure::new(UNREACHABLE, error.to_string()))?;
    let mut fence = FenceLayer::new(marks).drain(args.drain).unfenced_reads(args.unfenced_reads);
    if !args.lock.is_empty() {
        let locks: Result<Vec<_>, _> = args.lock.iter().map(|lock| checked(lock)).collect();
        fence = fence.locks(locks?);
    }
    let broken = |error: io::Error| Failure::broken("cannot start", &error);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.map_err(broken)?.block_on(async {
        let mut signals = Signals::listen().map_err(broken)?;
        let listener = TcpListener::bind(args.listen).await;
        let listener = listener.map_err(|error| {
            Failure::broken(format!("cannot listen on {}", args.listen), &error)
        })?;
        let here = listener.local_addr().map_err(broken)?;
        tell(format!("the gate is at http://{here}, in front of {}", args.upstream));
        let (ending, ended) = watch::channel(());
        let service = fence.layer(Proxy::new(upstream, args.upstream_timeout, ended.clone()));
        tokio::select! {
            () = serve(listener, service, ended) => {}
            signal = signals.next() => tracing::info!(target: "leasehold", ?signal, "the gate closes"),
        }
        // Connections notice, answer what they have begun, and drop their ends; so do requests
        // whose connection is gone.
        let _ = ending.send(());
        let _ = tokio::time::timeout(GRACE, ending.closed()).await;
        Ok(0)
    })
}

async fn serve(listener: TcpListener, service: FenceService<Proxy>, ended: watch::Receiver<()>) {
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                drop(tokio::spawn(connection(stream, peer, service.clone(), ended.clone())));
            }
            Err(error) => {
                tracing::warn!(target: "leasehold", %error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn connection(
    stream: TcpStream,
    peer: SocketAddr,
    service: FenceService<Proxy>,
    mut ended: watch::Receiver<()>,
) {
    let _ = stream.set_nodelay(true);
    let answer = service_fn(move |mut request: Request<Incoming>| {
        hops::forward(request.headers_mut(), Some(peer.ip()));
        // The proxy is always ready.
        service.clone().call(request)
    });
    let mut http = http1::Builder::new();
    let serving = http.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        result = serving.as_mut() => result,
        _ = ended.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(target: "leasehold", %peer, %error, "a connection ended");
    }
}

/// Host and port of an upstream URL.
fn authority(url: &str) -> Result<http::uri::Authority, Failure> {
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
        false => Ok(authority.clone()),
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
    fs::create_dir_all(&folder)
        .map_err(|error| Failure::broken(format!("cannot create {}", folder.display()), &error))?;
    Ok(folder.join("gate.db"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        assert_eq!(authority("http://localhost:8080").unwrap(), "localhost:8080");
        assert_eq!(authority("http://[::1]:80/").unwrap(), "[::1]:80");
        for wrong in ["", "localhost:80", "https://x", "http://x/path", "http://u:p@x", "/path"] {
            assert!(authority(wrong).is_err(), "{wrong:?}");
        }
    }
}
