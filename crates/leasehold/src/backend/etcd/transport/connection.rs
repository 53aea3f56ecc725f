//! One HTTP/2 connection to a member, the task that sends and reads for it, and its pings.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use h2::client::SendRequest;
use h2::{Ping, PingPong};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use super::deferred_wakes::defer_wakes;

/// How long a connection may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// etcd turns clients away that ping more often than every five seconds.
pub(super) const PING_EVERY: Duration = Duration::from_secs(6);
pub(super) const PING_TIMEOUT: Duration = Duration::from_secs(3);
/// How much may be on its way to us, on one stream and on all: watches of many locks share it.
const STREAM_WINDOW: u32 = 1 << 20;
const WINDOW: u32 = 1 << 22;
/// How many requests may be under way before the member has said how many it takes.
const AT_FIRST: usize = 100;

/// A connection that worked when it was last heard of. It ends with its last clone, and when
/// the last request on it is over.
#[derive(Clone)]
pub(super) struct Connection {
    pub(super) sender: SendRequest<Bytes>,
    traffic: Arc<Traffic>,
}

/// What its pings go by.
#[derive(Default)]
struct Traffic {
    under_way: AtomicUsize,
    /// A request was given up without an answer.
    doubt: Notify,
}

/// A request under way, until its answer was read: while there is one, pings are allowed.
pub(super) struct UnderWay {
    traffic: Arc<Traffic>,
    heard: bool,
}

impl Connection {
    pub(super) async fn on(socket: TcpStream) -> io::Result<Self> {
        socket.set_nodelay(true)?;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(STREAM_WINDOW).initial_connection_window_size(WINDOW);
        builder.initial_max_send_streams(AT_FIRST).enable_push(false);
        let (sender, mut driving) = builder.handshake(socket).await.map_err(io::Error::other)?;
        let traffic = Arc::<Traffic>::default();
        let (pings, watched) = (driving.ping_pong(), traffic.clone());
        let driving = Driving(Some(driving));
        tokio::spawn(async move {
            tokio::select! {
                ended = driving => {
                    if let Err(error) = ended {
                        tracing::debug!(%error, "a connection to etcd broke");
                    }
                }
                () = ping(pings, &watched) => {
                    tracing::debug!("a member of etcd does not answer pings");
                }
            }
        });
        Ok(Self { sender, traffic })
    }

    /// A request begins.
    pub(super) fn under_way(&self) -> UnderWay {
        self.traffic.under_way.fetch_add(1, Ordering::Relaxed);
        UnderWay { traffic: self.traffic.clone(), heard: false }
    }
}

impl UnderWay {
    /// Its answer began: the connection works.
    pub(super) fn heard(&mut self) {
        self.heard = true;
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.traffic.under_way.fetch_sub(1, Ordering::Relaxed);
        if !self.heard {
            self.traffic.doubt.notify_one();
        }
    }
}

/// Sends and reads. Whom that concerns is not woken under h2's own lock.
struct Driving(Option<h2::client::Connection<TcpStream, Bytes>>);

impl Future for Driving {
    type Output = Result<(), h2::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.0 {
            Some(driving) => defer_wakes(|| Pin::new(driving).poll(cx)),
            None => Poll::Ready(Ok(())),
        }
    }
}

impl Drop for Driving {
    fn drop(&mut self) {
        // Those who wait for answers are told now.
        defer_wakes(|| drop(self.0.take()));
    }
}

/// Pings now and then, and ends when one is not answered. While nothing is under way there is
/// none, since etcd turns clients away that ping for nothing; but one after a request that was
/// given up, or a connection that was cut off while it was idle would be used for many minutes.
async fn ping(pings: Option<PingPong>, traffic: &Traffic) {
    let Some(mut pings) = pings else { return std::future::pending().await };
    loop {
        sleep(PING_EVERY).await;
        if traffic.under_way.load(Ordering::Relaxed) == 0 {
            traffic.doubt.notified().await;
        }
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => {}
            // The connection is over, and so is this, by its other half.
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}
