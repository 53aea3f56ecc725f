//! The layer around a service.

use std::collections::HashSet;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Body;
use http_body_util::{Either, Full};
use tower::{Layer, Service};

use super::admission::Admission;
use super::body::FencedBody;
use super::detach::Detach;
use super::header::Presented;
use super::marks::Marks;
use super::{DEFAULT_DRAIN, problem};
use crate::name::Name;

/// A response: the service's, or a problem document.
type Answer<B> = Response<Either<B, Full<Bytes>>>;

/// Puts a fence around an HTTP service. See the [module](super) for the rule.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response, StatusCode};
/// use http_body_util::Full;
/// use leasehold_fence::http::{FenceLayer, FencedBody, MemoryMarks};
/// use tower::{Layer, ServiceExt, service_fn};
///
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let service = service_fn(async |_: Request<FencedBody<Full<Bytes>>>| {
///     Ok::<_, std::convert::Infallible>(Response::new(Full::<Bytes>::from("stored")))
/// });
/// let service = FenceLayer::new(MemoryMarks::default()).layer(service);
/// let put = |token: &str| {
///     let put = Request::put("/stock").header("Fencing-Token", token);
///     service.clone().oneshot(put.body(Full::from("9")).unwrap())
/// };
/// assert_eq!(put("stock;34").await.unwrap().status(), StatusCode::OK);
/// assert_eq!(put("stock;33").await.unwrap().status(), StatusCode::PRECONDITION_FAILED);
/// # });
/// ```
#[derive(Clone)]
pub struct FenceLayer {
    admission: Arc<Admission>,
    drain: Duration,
    unfenced_reads: bool,
    /// All, if there is no list.
    locks: Option<Arc<HashSet<Name>>>,
}

impl FenceLayer {
    /// A fence with these marks. All services that this layer and its clones make stand behind
    /// the same fence: a router that lays it around each of its routes has one rule for all.
    pub fn new(marks: impl Marks) -> Self {
        let admission = Arc::new(Admission::new(Arc::new(marks)));
        Self { admission, drain: DEFAULT_DRAIN, unfenced_reads: false, locks: None }
    }

    /// How long a newer request waits for older ones that are inside.
    #[must_use]
    pub fn drain(mut self, drain: Duration) -> Self {
        self.drain = drain;
        self
    }

    /// Lets GET, HEAD and OPTIONS through without a token. With one, it is checked.
    #[must_use]
    pub fn unfenced_reads(mut self, allowed: bool) -> Self {
        self.unfenced_reads = allowed;
        self
    }

    /// Takes tokens of these locks only; others are answered with 403. Without it, a token of any
    /// lock opens the service, since each lock is compared with itself alone.
    #[must_use]
    pub fn locks(mut self, locks: impl IntoIterator<Item = Name>) -> Self {
        self.locks = Some(Arc::new(locks.into_iter().collect()));
        self
    }
}

impl FenceLayer {
    fn knows(&self, lock: &Name) -> bool {
        self.locks.as_ref().is_none_or(|locks| locks.contains(lock))
    }
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        FenceService { inner, fence: Arc::new(self.clone()) }
    }
}

impl fmt::Debug for FenceLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceLayer").field("drain", &self.drain).finish_non_exhaustive()
    }
}

/// A service behind a fence. Clones share it.
#[derive(Clone)]
pub struct FenceService<S> {
    inner: S,
    /// Of this service and its clones, not of the layer's others: those may be on other cores.
    fence: Arc<FenceLayer>,
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<FencedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    R: Send + 'static,
    B: Body + Send + 'static,
{
    type Response = Answer<R>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Answer<R>, S::Error>> + Send>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        // The one that is ready goes with the request, its clone gets ready for the next.
        let next = self.inner.clone();
        let mut inner = std::mem::replace(&mut self.inner, next);
        let fence = self.fence.clone();
        let reads = fence.unfenced_reads && is_read(request.method());
        Box::pin(async move {
            let presented = match Presented::read(request.headers()) {
                Ok(Some(presented)) => presented,
                Ok(None) if reads => {
                    let through = inner.call(request.map(FencedBody::unfenced)).await?;
                    return Ok(through.map(Either::Left));
                }
                Ok(None) => return Ok(problem::missing().map(Either::Right)),
                Err(why) => return Ok(problem::malformed(&why).map(Either::Right)),
            };
            if !fence.knows(&presented.lock) {
                return Ok(problem::other_lock(&presented).map(Either::Right));
            }
            let pass = match fence.admission.admit(&presented, fence.drain).await {
                Ok(pass) => Arc::new(pass),
                Err(refusal) => {
                    return Ok(problem::refused(&presented, &refusal).map(Either::Right));
                }
            };
            let mut request = request.map(|body| FencedBody::new(body, pass.mark()));
            let cut = request.body().cut();
            request.extensions_mut().insert(pass.clone());
            // When the client goes away our future is dropped, but the service may have acted,
            // and a newer request must still wait for its answer.
            Detach::new(async move {
                let response = inner.call(request).await;
                if cut.load(Ordering::Acquire) {
                    return Ok(problem::stale_token(&presented, &pass.stale()).map(Either::Right));
                }
                Ok(response?.map(Either::Left))
            })
            .await
        })
    }
}

fn is_read(method: &Method) -> bool {
    [Method::GET, Method::HEAD, Method::OPTIONS].contains(method)
}

impl<S> fmt::Debug for FenceService<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FenceService").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use http::StatusCode;
    use tokio::sync::mpsc;
    use tower::{ServiceExt, service_fn};

    use super::super::marks::MemoryMarks;
    use super::*;

    type Sent = Request<FencedBody<Full<Bytes>>>;

    fn put(token: u64) -> Request<Full<Bytes>> {
        let put = Request::put("/").header("Fencing-Token", format!("stock;{token}"));
        put.body(Full::from("x")).unwrap()
    }

    /// Routers lay a layer around each of their routes.
    #[tokio::test]
    async fn the_routes_of_one_layer_have_one_rule() {
        let layer = FenceLayer::new(MemoryMarks::default());
        let handler = || {
            service_fn(async |_: Sent| {
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
            })
        };
        let (one, two) = (layer.layer(handler()), layer.clone().layer(handler()));
        let Ok(first) = one.clone().oneshot(put(5)).await;
        let Ok(newer) = two.oneshot(put(6)).await;
        assert_eq!([first.status(), newer.status()], [StatusCode::OK; 2]);
        let Ok(late) = one.oneshot(put(5)).await;
        assert_eq!(late.status(), StatusCode::PRECONDITION_FAILED, "the other has seen 6");
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_whose_client_went_away_is_still_waited_for() {
        let (arriving, mut arrived) = mpsc::unbounded_channel();
        let (go_on, told) = tokio::sync::watch::channel(false);
        let service = service_fn(move |_: Sent| {
            let (arriving, mut told) = (arriving.clone(), told.clone());
            async move {
                let _ = arriving.send(());
                let _ = told.wait_for(|told| *told).await;
                Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
            }
        });
        let service = FenceLayer::new(MemoryMarks::default()).layer(service);
        let older = tokio::spawn(service.clone().oneshot(put(5)));
        arrived.recv().await.unwrap();
        // As hyper does when the client closes its connection.
        older.abort();
        assert!(older.await.unwrap_err().is_cancelled());
        let Ok(busy) = service.clone().oneshot(put(6)).await;
        assert_eq!(busy.status(), StatusCode::SERVICE_UNAVAILABLE, "the older one is inside");
        go_on.send(true).unwrap();
        let Ok(newer) = service.oneshot(put(6)).await;
        assert_eq!(newer.status(), StatusCode::OK);
    }
}
