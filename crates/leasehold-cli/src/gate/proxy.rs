//! The way to the upstream.

use std::convert::Infallible;
use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http::uri::{Authority, PathAndQuery, Scheme};
use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri, Version};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use leasehold::fence::http::{FencedBody, Pass};
use serde_json::json;
use tokio::sync::watch;
use tower::Service;

use super::hops;
use super::upload::{Turn, Upload};

type Sent = FencedBody<Incoming>;
type Passed = Upload<Sent>;
type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// How long a connection to the upstream may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long idle connections to the upstream are kept.
const IDLE: Duration = Duration::from_secs(30);

/// Passes requests on, over connections that are kept.
#[derive(Clone)]
pub(super) struct Proxy {
    client: Client<HttpConnector, Passed>,
    upstream: Authority,
    timeout: Duration,
    /// Held while a request is under way, also by one whose client went away: the gate waits
    /// at its end until nobody holds one.
    _ended: watch::Receiver<()>,
}

impl Proxy {
    pub(super) fn new(upstream: Authority, timeout: Duration, ended: watch::Receiver<()>) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let mut client = Client::builder(TokioExecutor::new());
        client.pool_timer(TokioTimer::new()).pool_idle_timeout(IDLE);
        // A request is sent again only if not one byte of it was sent: the connection that
        // it was given had been closed by the upstream just before.
        client.retry_canceled_requests(true);
        Self { client: client.build(connector), upstream, timeout, _ended: ended }
    }

    async fn pass_on(self, mut request: Request<Sent>) -> Answer {
        let path = request.uri().path_and_query().cloned();
        let Some(uri) = path.and_then(|path| at(&self.upstream, path)) else {
            let why = "The gate passes on requests for a path only";
            return problem(StatusCode::NOT_IMPLEMENTED, "not-passed-on", why);
        };
        *request.uri_mut() = uri;
        *request.version_mut() = Version::HTTP_11;
        let (parts, body) = request.into_parts();
        let (body, turn) = Upload::new(body);
        let answer = self.client.request(Request::from_parts(parts, body));
        match within(self.timeout, turn, answer).await {
            Some(Ok(mut response)) => {
                hops::forward(response.headers_mut(), None);
                response.map(Either::Left)
            }
            Some(Err(error)) => {
                let cause = error.source().map(ToString::to_string).unwrap_or_default();
                tracing::warn!(target: "leasehold", %error, cause, "the upstream failed");
                let (title, why) = match error.is_connect() {
                    true => {
                        ("upstream-unreachable", "The service cannot be reached: nothing was done")
                    }
                    false => ("upstream-failed", "The service did not answer; it may have acted"),
                };
                problem(StatusCode::BAD_GATEWAY, title, why)
            }
            None => {
                let why = "The service did not answer in time; it may have acted";
                problem(StatusCode::GATEWAY_TIMEOUT, "upstream-timeout", why)
            }
        }
    }
}

impl Service<Request<Sent>> for Proxy {
    type Response = Answer;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Answer, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: Request<Sent>) -> Self::Future {
        // The layer holds the pass until we have answered; the client's pool must not.
        drop(request.extensions_mut().remove::<Arc<Pass>>());
        let passing = self.clone().pass_on(request);
        Box::pin(async { Ok(passing.await) })
    }
}

/// The answer, unless the service lets us wait for so long; how long the client takes for
/// its body does not count.
async fn within<A>(limit: Duration, turn: Turn, answer: impl Future<Output = A>) -> Option<A> {
    tokio::select! {
        answer = answer => Some(answer),
        () = turn.idle(limit) => None,
    }
}

fn at(upstream: &Authority, path: PathAndQuery) -> Option<Uri> {
    let uri = Uri::builder().scheme(Scheme::HTTP).authority(upstream.clone());
    uri.path_and_query(path).build().ok()
}

fn problem(status: StatusCode, kind: &str, title: &str) -> Answer {
    let document = json!({
        "type": format!("urn:leasehold:{kind}"), "title": title, "status": status.as_u16(),
    });
    let mut response = Response::new(Either::Right(Full::from(document.to_string())));
    *response.status_mut() = status;
    let kind = HeaderValue::from_static("application/problem+json");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}
