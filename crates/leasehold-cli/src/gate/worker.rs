//! A thread with connections of its own, and connections to the service of its own: a request
//! stays on its core from the first byte to the last.

use std::net::SocketAddr;
use std::sync::Arc;
use std::{io, thread};

use hyper::body::Incoming;
use hyper::header::HeaderValue;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Uri};
use hyper_util::rt::{TokioIo, TokioTimer};
use leasehold::fence::http::{FenceLayer, FenceService};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tower::{Layer, Service};

use super::proxy::Proxy;
use super::underway::Underway;
use super::{GRACE, hops};
use crate::args::Gate;

/// A connection that was accepted.
struct Accepted {
    stream: std::net::TcpStream,
    peer: SocketAddr,
    /// Counts the connections of the worker.
    _open: Arc<()>,
}

/// How far the gate is with its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Open,
    /// Nothing more is let through.
    Closing,
    /// And no client may go on to send: only the service's answers are waited for.
    Cut,
}

/// Takes connections, until it is dropped; then it answers what it has begun.
pub(super) struct Worker {
    accepted: mpsc::UnboundedSender<Accepted>,
    open: Arc<()>,
    underway: Underway,
}

impl Worker {
    /// Starts its thread, which keeps `running` until it has nothing left to do.
    pub(super) fn start(
        fence: FenceLayer,
        upstream: Uri,
        args: &Gate,
        running: mpsc::Sender<()>,
    ) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (accepted, accepting) = mpsc::unbounded_channel();
        let timeout = args.upstream_timeout;
        let underway = Underway::default();
        let entered = underway.clone();
        thread::Builder::new().name("leasehold-gate".to_owned()).spawn(move || {
            runtime.block_on(async {
                let (ending, phase) = watch::channel(Phase::Open);
                let service = fence.layer(Proxy::new(upstream, timeout, phase.clone(), entered));
                serve(accepting, service, phase).await;
                // Connections notice, answer what they have begun, and drop their ends; so do
                // requests whose connection is gone.
                let _ = ending.send(Phase::Closing);
                if tokio::time::timeout(GRACE, ending.closed()).await.is_err() {
                    let _ = ending.send(Phase::Cut);
                    ending.closed().await;
                }
            });
            drop(running);
        })?;
        Ok(Self { accepted, open: Arc::default(), underway })
    }

    /// Its requests that the service has not answered yet.
    pub(super) fn underway(&self) -> Underway {
        self.underway.clone()
    }

    /// How many connections it has.
    pub(super) fn load(&self) -> usize {
        Arc::strong_count(&self.open)
    }

    /// Gives it a connection.
    pub(super) fn take(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let accepted = Accepted { stream: stream.into_std()?, peer, _open: self.open.clone() };
        self.accepted.send(accepted).map_err(|_| io::Error::other("its thread has ended"))
    }
}

async fn serve(
    mut accepting: mpsc::UnboundedReceiver<Accepted>,
    service: FenceService<Proxy>,
    phase: watch::Receiver<Phase>,
) {
    while let Some(accepted) = accepting.recv().await {
        drop(tokio::spawn(connection(accepted, service.clone(), phase.clone())));
    }
}

async fn connection(
    accepted: Accepted,
    service: FenceService<Proxy>,
    mut phase: watch::Receiver<Phase>,
) {
    let Accepted { stream, peer, _open } = accepted;
    let stream = match TcpStream::from_std(stream) {
        Ok(stream) => stream,
        Err(error) => {
            tracing::warn!(target: "leasehold", %error, "cannot serve a connection");
            return;
        }
    };
    let _ = stream.set_nodelay(true);
    let from = HeaderValue::try_from(peer.ip().to_string()).ok();
    let answer = service_fn(move |mut request: Request<Incoming>| {
        hops::forward(request.headers_mut(), from.as_ref());
        // The proxy is always ready.
        service.clone().call(request)
    });
    let mut http = http1::Builder::new();
    let serving = http.timer(TokioTimer::new()).serve_connection(TokioIo::new(stream), answer);
    let mut serving = std::pin::pin!(serving);
    let result = tokio::select! {
        biased;
        result = serving.as_mut() => result,
        _ = phase.changed() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = result {
        tracing::debug!(target: "leasehold", %peer, %error, "a connection ended");
    }
}
