//! A TCP proxy between a client and its server that does to them what networks do: delay,
//! drop one way, reset, swallow a reply, hold a request back and deliver it late.
//!
//! It knows nothing of protocols: a *chunk* is what one read gives, which for small requests and
//! replies on one connection is one message. Faults apply to all connections, from the moment
//! they are set.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

/// Which way bytes go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// What the proxy does to chunks that go one way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Weather {
    delay: Duration,
    drop: bool,
    /// The n-th chunk from now vanishes; 1 is the next.
    swallow: u64,
    /// The next chunk, and what follows it on its connection, waits for [`Proxy::deliver`].
    hold: bool,
}

#[derive(Debug, Default)]
struct State {
    requests: Weather,
    replies: Weather,
}

impl State {
    fn of(&mut self, way: Way) -> &mut Weather {
        match way {
            Way::Requests => &mut self.requests,
            Way::Replies => &mut self.replies,
        }
    }
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    delivery: Notify,
    holding: watch::Sender<u64>,
    resets: watch::Sender<u64>,
}

/// A listening proxy. Dropped, it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of this machine, in front of `server`.
    pub async fn start(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            delivery: Notify::new(),
            holding: watch::Sender::new(0),
            resets: watch::Sender::new(0),
        });
        let accepting = tokio::spawn(accept(listener, server, shared.clone()));
        Ok(Self { address, shared, accepting })
    }

    /// Where clients connect.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Delays every chunk that goes this way.
    pub fn delay(&self, way: Way, by: Duration) {
        self.shared.state.lock().of(way).delay = by;
    }

    /// Drops everything that goes this way; the other way stays open.
    pub fn drop_one_way(&self, way: Way) {
        self.shared.state.lock().of(way).drop = true;
    }

    /// Swallows the n-th reply from now (1 is the next): done, but nobody is told.
    pub fn swallow_reply(&self, nth: u64) {
        self.shared.state.lock().replies.swallow = nth;
    }

    /// Holds the next request back until [`Proxy::deliver`].
    pub fn hold_request(&self) {
        self.shared.state.lock().requests.hold = true;
    }

    /// Waits until a request is held back.
    pub async fn holds_one(&self) {
        let mut holding = self.shared.holding.subscribe();
        // The sender lives as long as this proxy.
        let _ = holding.wait_for(|count| *count > 0).await;
    }

    /// Delivers the request that is held back, also when its client has long gone.
    pub fn deliver(&self) {
        self.shared.delivery.notify_waiters();
    }

    /// Resets all connections.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }

    /// Good weather again. What was dropped stays lost; what is held is delivered.
    pub fn heal(&self) {
        *self.shared.state.lock() = State::default();
        self.deliver();
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
        self.deliver();
    }
}

async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        let shared = shared.clone();
        tokio::spawn(async move {
            // A server that refuses is seen by the client as a closed connection.
            if let Ok(server) = TcpStream::connect(server).await {
                connect_through(client, server, shared).await;
            }
        });
    }
}

async fn connect_through(client: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    let mut resets = shared.resets.subscribe();
    resets.mark_unchanged();
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (from_client, to_client) = client.into_split();
    let (from_server, to_server) = server.into_split();
    let mut requests = tokio::spawn(pump(from_client, to_server, Way::Requests, shared.clone()));
    let mut replies = tokio::spawn(pump(from_server, to_client, Way::Replies, shared));
    tokio::select! {
        // A client that leaves is seen by the server only after what it sent was delivered.
        _ = &mut requests => {
            let _ = (&mut replies).await;
        }
        _ = &mut replies => {
            let _ = (&mut requests).await;
        }
        _ = resets.changed() => {
            requests.abort();
            replies.abort();
        }
    }
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    way: Way,
    shared: Arc<Shared>,
) -> io::Result<()> {
    let mut chunk = vec![0; 64 * 1024];
    loop {
        let length = from.read(&mut chunk).await?;
        if length == 0 {
            return to.shutdown().await;
        }
        let (weather, swallowed) = weather_for_one(&shared, way);
        if weather.hold {
            let delivery = shared.delivery.notified();
            shared.holding.send_modify(|count| *count += 1);
            delivery.await;
            shared.holding.send_modify(|count| *count -= 1);
        }
        if !weather.delay.is_zero() {
            tokio::time::sleep(weather.delay).await;
        }
        if !weather.drop && !swallowed {
            to.write_all(&chunk[..length]).await?;
        }
    }
}

/// The weather for one chunk; what strikes only once is used up by it.
fn weather_for_one(shared: &Shared, way: Way) -> (Weather, bool) {
    let mut state = shared.state.lock();
    let weather = state.of(way);
    let now = *weather;
    weather.hold = false;
    weather.swallow = now.swallow.saturating_sub(1);
    (now, now.swallow == 1)
}

#[cfg(test)]
mod tests;
