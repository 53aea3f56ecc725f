//! The way to one member without TLS, for the driver: HTTP/2, and nothing around it.
//!
//! The driver's own channel hands a request from task to task (a buffer, a balancer, the
//! connection's, one for each answer), which costs more than the rest of the request. Here
//! whoever asks writes into the connection, and is woken by it (ADR 10). It is made when it is
//! first needed, and again when it is lost; what was under way is not sent again.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::future::BoxFuture;
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{Request, Response, Uri, Version};
use parking_lot::Mutex;
use tokio::net::{TcpStream, lookup_host};
use tokio::time::timeout;
use tonic::body::Body;
use tower::{BoxError, Service};

use super::answer::Answer;
use super::connection::{CONNECT_TIMEOUT, Connection};
use super::deferred_wakes::deferring;
use super::upload::Upload;
use crate::backend::etcd::error::NotConnected;

/// The way to one member. Cheap to clone.
#[derive(Clone)]
pub(super) struct Channel(Arc<Shared>);

struct Shared {
    authority: Authority,
    state: Mutex<State>,
    /// Held while connecting: one at a time.
    connecting: Arc<tokio::sync::Mutex<()>>,
}

#[derive(Default)]
struct State {
    current: Option<Connection>,
    /// The last attempt that failed, and when.
    failed: Option<(Instant, NotConnected)>,
}

impl Channel {
    pub(super) fn to(authority: Authority) -> Self {
        Self(Arc::new(Shared { authority, state: Mutex::default(), connecting: Arc::default() }))
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
    async fn ask(self: &Arc<Self>, request: Request<Body>) -> Result<Response<Body>, BoxError> {
        let request = self.addressed(request)?;
        let mut connection = self.connection().await.map_err(NotConnected::told)?;
        let mut under_way = connection.under_way();
        let (head, body) = request.into_parts();
        let head = Request::from_parts(head, ());
        let (mut answer, stream) = connection.sender.send_request(head, false)?;
        Upload::new(body, stream).begin();
        let answer =
            poll_fn(|cx| Pin::new(&mut answer).poll(&mut Context::from_waker(&deferring(cx))));
        let answer = answer.await?;
        under_way.heard();
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
    async fn connection(self: &Arc<Self>) -> Result<Connection, NotConnected> {
        match self.current().await {
            Some(connection) => Ok(connection),
            // What is rare must not make the future larger that each request moves.
            None => Box::pin(self.new_connection()).await,
        }
    }

    /// The connection that is there, unless it is over.
    async fn current(&self) -> Option<Connection> {
        let mut connection = self.state.lock().current.clone()?;
        poll_fn(|cx| connection.sender.poll_ready(cx)).await.ok().map(|()| connection)
    }

    /// In a task of its own: whoever needs it may give up before it is there, and the next one
    /// goes on from where that was.
    async fn new_connection(self: &Arc<Self>) -> Result<Connection, NotConnected> {
        let began = Instant::now();
        let alone = self.connecting.clone().lock_owned().await;
        if let Some(connection) = self.current().await {
            return Ok(connection);
        }
        if let Some((at, error)) = &self.state.lock().failed
            && *at >= began
        {
            // It failed while this one waited for it.
            return Err(error.clone());
        }
        let shared = self.clone();
        let connecting = tokio::spawn(async move {
            let _alone = alone;
            shared.connect_in_time().await
        });
        let gone = |_| NotConnected(Arc::new(io::Error::other("the runtime has ended")));
        connecting.await.unwrap_or_else(|error| Err(gone(error)))
    }

    async fn connect_in_time(&self) -> Result<Connection, NotConnected> {
        let connected = timeout(CONNECT_TIMEOUT, self.connect()).await;
        let connected = connected.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let connected = connected.map_err(|error| NotConnected(Arc::new(error)));
        let mut state = self.state.lock();
        match &connected {
            Ok(connection) => state.current = Some(connection.clone()),
            Err(error) => state.failed = Some((Instant::now(), error.clone())),
        }
        connected
    }

    async fn connect(&self) -> io::Result<Connection> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = self.authority.port_u16().unwrap_or(80);
        let addresses: Vec<_> = lookup_host((host, port)).await?.collect();
        let mut failed = io::Error::from(io::ErrorKind::NotFound);
        for address in &addresses {
            // One that swallows packets must not use up the time of the others.
            let share = CONNECT_TIMEOUT / u32::try_from(addresses.len()).unwrap_or(u32::MAX);
            match timeout(share, TcpStream::connect(address)).await {
                Ok(Ok(socket)) => return Connection::on(socket).await,
                Ok(Err(error)) => failed = error,
                Err(_) => failed = io::ErrorKind::TimedOut.into(),
            }
        }
        Err(failed)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Channel").field(&self.0.authority).finish()
    }
}
