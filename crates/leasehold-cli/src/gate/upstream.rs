//! Connections to the service, of one worker: kept after their answer, and taken again by the
//! next request. Requests and connections of a worker share its thread, so that none waits for
//! another core.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use hyper::body::{Body, Incoming};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response, Uri};
use hyper_util::client::legacy::connect::HttpConnector;
use tokio::time::Instant;
use tower::Service;

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(5);
/// How long idle connections are kept.
const IDLE: Duration = Duration::from_secs(30);

type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why there is no answer.
pub(super) enum Failed {
    /// Nothing was sent.
    Unreached(Cause),
    /// Some of it was sent, or all.
    Broken(hyper::Error),
}

/// The service, and the connections to it.
pub(super) struct Upstream<B> {
    connector: HttpConnector,
    address: Uri,
    kept: Arc<Mutex<Vec<Kept<B>>>>,
}

/// A connection whose last request was answered; the answer's body may still be on its way.
struct Kept<B> {
    sender: SendRequest<B>,
    since: Instant,
}

impl<B> Upstream<B>
where
    B: Body + Send + Unpin + 'static,
    B::Data: Send,
    B::Error: Into<Cause>,
{
    /// Must be called in the runtime that its requests run in.
    pub(super) fn new(address: Uri) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(CONNECT));
        let kept = Arc::new(Mutex::new(Vec::new()));
        drop(tokio::spawn(sweep(Arc::downgrade(&kept))));
        Self { connector, address, kept }
    }

    /// Sends a request. It is sent again only if not one byte of it was sent: the connection
    /// that it was given had been closed by the service just before.
    pub(super) async fn send(&self, mut request: Request<B>) -> Result<Response<Incoming>, Failed> {
        loop {
            let (mut sender, is_new) = match self.take() {
                Some(sender) => (sender, false),
                None => (self.connect().await.map_err(Failed::Unreached)?, true),
            };
            let mut error = match sender.try_send_request(request).await {
                Ok(response) => {
                    let kept = Kept { sender, since: Instant::now() };
                    self.kept.lock().unwrap_or_else(PoisonError::into_inner).push(kept);
                    return Ok(response);
                }
                Err(error) => error,
            };
            match error.take_message() {
                Some(unsent) if !is_new => request = unsent,
                Some(_) => return Err(Failed::Unreached(error.into_error().into())),
                None => return Err(Failed::Broken(error.into_error())),
            }
        }
    }

    /// The connection that was used last, of those that are free.
    fn take(&self) -> Option<SendRequest<B>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = kept.len();
        while at > 0 {
            at -= 1;
            if kept[at].sender.is_ready() {
                return Some(kept.remove(at).sender);
            }
            if kept[at].sender.is_closed() {
                kept.remove(at);
            }
        }
        None
    }

    async fn connect(&self) -> Result<SendRequest<B>, Cause> {
        let stream = self.connector.clone().call(self.address.clone()).await?;
        let (sender, connection) = http1::handshake(stream).await?;
        drop(tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(target: "leasehold", %error, "a connection to the upstream ended");
            }
        }));
        Ok(sender)
    }
}

/// Closes connections that nobody has used for long, until the upstream is dropped.
async fn sweep<B>(kept: Weak<Mutex<Vec<Kept<B>>>>) {
    loop {
        tokio::time::sleep(IDLE / 2).await;
        let Some(kept) = kept.upgrade() else { return };
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.retain(|kept| {
            let unused = kept.sender.is_ready() && kept.since.elapsed() > IDLE;
            !(unused || kept.sender.is_closed())
        });
    }
}
