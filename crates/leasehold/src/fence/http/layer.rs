//! The layer around a service.

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
use super::header::Presented;
use super::marks::Marks;
use super::{DEFAULT_DRAIN, problem};

/// A response: the service's, or a problem document.
type Answer<B> = Response<Either<B, Full<Bytes>>>;

/// Puts a fence around an HTTP service. See the [module](super) for the rule.
///
/// ```
/// use bytes::Bytes;
/// use http::{Request, Response, StatusCode};
/// use http_body_util::Full;
/// use leasehold::fence::http::{FenceLayer, FencedBody, MemoryMarks};
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
    marks: Arc<dyn Marks>,
    drain: Duration,
    unfenced_reads: bool,
}

impl FenceLayer {
    /// A fence with these marks. Services that one layer makes have an admission each: make
    /// one, and clone it.
    pub fn new(marks: impl Marks) -> Self {
        Self { marks: Arc::new(marks), drain: DEFAULT_DRAIN, unfenced_reads: false }
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
}

impl<S> Layer<S> for FenceLayer {
    type Service = FenceService<S>;

    fn layer(&self, inner: S) -> FenceService<S> {
        let admission = Arc::new(Admission::new(self.marks.clone(), self.drain));
        FenceService { inner, admission, unfenced_reads: self.unfenced_reads }
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
    admission: Arc<Admission>,
    unfenced_reads: bool,
}

impl<S, B, R> Service<Request<B>> for FenceService<S>
where
    S: Service<Request<FencedBody<B>>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
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
        let admission = self.admission.clone();
        let reads = self.unfenced_reads && is_read(request.method());
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
            let pass = match admission.admit(&presented).await {
                Ok(pass) => Arc::new(pass),
                Err(refusal) => {
                    return Ok(problem::refused(&presented, &refusal).map(Either::Right));
                }
            };
            let mut request = request.map(|body| FencedBody::new(body, pass.superseded()));
            let cut = request.body().cut();
            request.extensions_mut().insert(pass.clone());
            let response = inner.call(request).await;
            if cut.load(Ordering::Acquire) {
                return Ok(problem::stale_token(&presented, &pass.stale()).map(Either::Right));
            }
            Ok(response?.map(Either::Left))
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
