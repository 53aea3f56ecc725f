//! A connection to one member without TLS, for the driver: HTTP/2, and nothing around it.
//!
//! The driver's own hands a request from task to task (a buffer, a balancer, the connection's,
//! one for each answer), which costs more than the rest of the request. Here whoever asks writes
//! into the connection, and is woken by it. It is made when it is first needed, and again when
//! it is lost; what was under way is not sent again.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::BoxFuture;
use h2::client::{Connection, SendRequest};
use h2::{Ping, PingPong};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};
use tonic::Status;
use tonic::body::Body;
use tower::{BoxError, Service};

use super::answer::Answer;
use super::endpoints::{CONNECT_TIMEOUT, PING_EVERY, PING_TIMEOUT};
use super::upload::Upload;

/// How much may be on its way to us, on one stream and on all: watches of many locks share it.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 1 << 22;

/// The way to one member. Cheap to clone.
#[derive(Clone)]
pub(super) struct Channel(Arc<Shared>);

struct Shared {
    authority: Authority,
    present: Mutex<Option<Line>>,
    /// Held while connecting: one at a time.
    connecting: tokio::sync::Mutex<()>,
}

/// A connection that worked when it was last heard of.
#[derive(Clone)]
struct Line {
    sender: SendRequest<Bytes>,
    /// How many requests are under way on it.
    open: Arc<AtomicUsize>,
}

/// A request under way, until its answer has been read.
pub(super) struct UnderWay(Arc<AtomicUsize>);

impl UnderWay {
    fn on(line: &Line) -> Self {
        line.open.fetch_add(1, Ordering::Relaxed);
        Self(line.open.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Channel {
    pub(super) fn to(authority: Authority) -> Self {
        let (present, connecting) = (Mutex::default(), tokio::sync::Mutex::default());
        Self(Arc::new(Shared { authority, present, connecting }))
    }
}

impl Service<Request<Body>> for Channel {
    type Response = Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Response<Body>, BoxError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let shared = self.0.clone();
        Box::pin(async move { shared.ask(request).await })
    }
}

impl Shared {
    async fn ask(&self, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let (mut line, request) = (self.ready().await?, self.addressed(request)?);
        let under_way = UnderWay::on(&line);
        let (head, body) = request.into_parts();
        let (answer, stream) = line.sender.send_request(Request::from_parts(head, ()), false)?;
        Upload::new(body, stream).begin();
        let answer = answer.await?;
        Ok(answer.map(|body| Body::new(Answer::new(body, under_way))))
    }

    /// The same request with the address of the member, which the driver leaves to its channel.
    fn addressed(&self, mut request: Request<Body>) -> Result<Request<Body>, http::Error> {
        let path = request.uri().path_and_query().cloned();
        *request.uri_mut() = Uri::builder()
            .scheme(Scheme::HTTP)
            .authority(self.authority.clone())
            .path_and_query(path.unwrap_or(PathAndQuery::from_static("/")))
            .build()?;
        *request.version_mut() = Version::HTTP_2;
        Ok(request)
    }

    /// A connection that takes requests. An error means that nothing was sent.
    async fn ready(&self) -> Result<Line, Status> {
        let present = self.present.lock().clone();
        if let Some(mut line) = present
            && poll_fn(|cx| line.sender.poll_ready(cx)).await.is_ok()
        {
            return Ok(line);
        }
        // What is rare must not make the future larger that each request moves.
        Box::pin(self.another()).await
    }

    async fn another(&self) -> Result<Line, Status> {
        let _alone = self.connecting.lock().await;
        let present = self.present.lock().clone();
        if let Some(mut line) = present
            && poll_fn(|cx| line.sender.poll_ready(cx)).await.is_ok()
        {
            return Ok(line);
        }
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let line = connected.map_err(not_connected)?;
        *self.present.lock() = Some(line.clone());
        Ok(line)
    }

    async fn connect(&self) -> io::Result<Line> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let socket = TcpStream::connect((host, self.authority.port_u16().unwrap_or(80))).await?;
        socket.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(WINDOW);
        builder.enable_push(false);
        let (sender, connection) = builder.handshake(socket).await.map_err(io::Error::other)?;
        let open = Arc::<AtomicUsize>::default();
        tokio::spawn(drive(connection, open.clone()));
        Ok(Line { sender, open })
    }
}

/// Sends and reads for as long as the connection lives, and somebody may use it.
async fn drive(mut connection: Connection<TcpStream, Bytes>, open: Arc<AtomicUsize>) {
    let pings = connection.ping_pong();
    tokio::select! {
        ended = connection => {
            if let Err(error) = ended {
                tracing::debug!(%error, "a connection to etcd broke");
            }
        }
        () = ping(pings, &open) => tracing::debug!("a member of etcd does not answer pings"),
    }
}

/// Ends when a ping is not answered. None is sent while nothing is under way: etcd turns
/// clients away that do.
async fn ping(pings: Option<PingPong>, open: &AtomicUsize) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(PING_EVERY).await;
        if open.load(Ordering::Relaxed) == 0 {
            continue;
        }
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // It has ended, and whoever reads is told.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

fn not_connected(error: io::Error) -> Status {
    let mut status = Status::unavailable("no connection");
    status.set_source(Arc::new(NotConnected(error)));
    status
}

/// What was asked was never sent.
#[derive(Debug)]
pub(super) struct NotConnected(io::Error);

impl fmt::Display for NotConnected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not connected")
    }
}

impl std::error::Error for NotConnected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.0.authority).finish()
    }
}
