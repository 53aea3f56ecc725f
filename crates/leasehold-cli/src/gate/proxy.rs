//! The way to the upstream.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::{Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HOST, HeaderValue};
use hyper::{Request, Response, StatusCode, Uri, Version};
use leasehold::fence::http::{FencedBody, Pass};
use serde_json::json;
use tokio::sync::watch;
use tower::Service;

use super::hops;
use super::underway::Underway;
use super::upload::{Stopped, Turn, Upload};
use super::upstream::{Failed, Upstream};
use super::worker::Phase;
use crate::exit::Chain;

type Sent = FencedBody<Incoming>;
type Passed = Upload<Sent>;
type Answer = Response<Either<Incoming, Full<Bytes>>>;

/// Passes requests on, over connections that are kept. Clones share them.
#[derive(Clone)]
pub(super) struct Proxy(Arc<Shared>);

struct Shared {
    upstream: Upstream<Passed>,
    /// For requests without one.
    host: Option<HeaderValue>,
    timeout: Duration,
    /// Held while a request is under way, also by one whose client went away: the worker waits
    /// at its end until nobody holds one.
    phase: watch::Receiver<Phase>,
    underway: Underway,
}

impl Proxy {
    /// Must be called in the runtime that its requests run in.
    pub(super) fn new(
        upstream: Uri,
        timeout: Duration,
        phase: watch::Receiver<Phase>,
        underway: Underway,
    ) -> Self {
        let host = upstream.authority().and_then(|host| HeaderValue::try_from(host.as_str()).ok());
        let upstream = Upstream::new(upstream);
        Self(Arc::new(Shared { upstream, host, timeout, phase, underway }))
    }

    async fn pass_on(self, mut request: Request<Sent>) -> Answer {
        let Self(shared) = self;
        // It may have waited for an older one until now.
        if *shared.phase.borrow() != Phase::Open {
            let why = "The gate closes: nothing was done";
            return problem(StatusCode::SERVICE_UNAVAILABLE, "gate-closes", why);
        }
        let _entry = shared.underway.enter(&request);
        let Some(path) = request.uri().path_and_query() else {
            let why = "The gate passes on requests for a path only";
            return problem(StatusCode::NOT_IMPLEMENTED, "not-passed-on", why);
        };
        if request.uri().authority().is_some() {
            *request.uri_mut() = Uri::from(path.clone());
        }
        *request.version_mut() = Version::HTTP_11;
        if let Some(host) = &shared.host {
            request.headers_mut().entry(HOST).or_insert_with(|| host.clone());
        }
        let (parts, body) = request.into_parts();
        let (body, turn) = Upload::new(body);
        let answer = shared.upstream.send(Request::from_parts(parts, body));
        match within(shared.timeout, turn, shared.phase.clone(), answer).await {
            Ok(Ok(mut response)) => {
                hops::forward(response.headers_mut(), None);
                response.map(Either::Left)
            }
            Ok(Err(Failed::Unreached(error))) => {
                let error = Chain(&*error);
                tracing::warn!(target: "leasehold", %error, "the upstream cannot be reached");
                let why = "The service cannot be reached: nothing was done";
                problem(StatusCode::BAD_GATEWAY, "upstream-unreachable", why)
            }
            Ok(Err(Failed::Broken(error))) => {
                let error = Chain(&error);
                tracing::warn!(target: "leasehold", %error, "the upstream failed");
                let why = "The service did not answer; it may have acted";
                problem(StatusCode::BAD_GATEWAY, "upstream-failed", why)
            }
            Err(Stopped::Closing) => {
                let why = "The gate closes: the service did not get the whole request";
                problem(StatusCode::SERVICE_UNAVAILABLE, "gate-closes", why)
            }
            Err(Stopped::Idle) => {
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
        // The layer holds the pass until we have answered; its connections must not.
        drop(request.extensions_mut().remove::<Arc<Pass>>());
        let passing = self.clone().pass_on(request);
        Box::pin(async { Ok(passing.await) })
    }
}

/// The answer, unless the service lets us wait for so long; how long the client takes for
/// its body does not count.
async fn within<A>(
    limit: Duration,
    turn: Turn,
    phase: watch::Receiver<Phase>,
    answer: impl Future<Output = A>,
) -> Result<A, Stopped> {
    tokio::select! {
        biased;
        answer = answer => Ok(answer),
        stopped = turn.stopped(limit, phase) => Err(stopped),
    }
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
