//! A TCP proxy between clients and their server that does to them what networks do.
//!
//! ```
//! # use std::time::Duration;
//! # use leasehold_faults::faults::proxy::{Proxy, Way};
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! # let server = tokio::net::TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
//! let proxy = Proxy::to(server).await?;
//! let url = format!("redis://{}", proxy.addr());     // the client connects to this
//! proxy.delay(Way::Replies, Duration::from_millis(50));
//! proxy.swallow_reply_to("evalsha");                 // done, but nobody is told
//! proxy.hold_request_with("evalsha");                // then: holds_one().await … deliver()
//! proxy.cut(Way::Requests);                          // a partition, one way
//! proxy.heal();
//! # std::io::Result::Ok(()) }).unwrap();
//! ```
//!
//! It knows nothing of protocols: a *chunk* is what one read gives, which for small requests and
//! replies on one connection is one message. Faults apply to all connections, from the moment
//! they are set until [`Proxy::heal`].
//!
//! As with TCP, a connection never loses bytes from its middle: what follows them is lost,
//! too. So a reply is swallowed together with its connection, and a connection from which
//! something was dropped is reset when the network heals.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::net::TcpListener;
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

mod carry;

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
    cut: bool,
    drop: bool,
}

/// What strikes one chunk and is used up by it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
enum Trap {
    #[default]
    None,
    /// The n-th chunk from now; 1 is the next.
    Nth(u64),
    /// The next chunk with these bytes in it.
    With(Vec<u8>),
}

impl Trap {
    /// Whether this chunk is caught.
    fn catches(&mut self, chunk: &[u8]) -> bool {
        let caught = match self {
            Self::None => false,
            Self::Nth(nth) => {
                *nth = nth.saturating_sub(1);
                *nth == 0
            }
            Self::With(bytes) => chunk.windows(bytes.len().max(1)).any(|part| part == bytes),
        };
        if caught {
            *self = Self::None;
        }
        caught
    }
}

#[derive(Debug, Default)]
struct State {
    requests: Weather,
    replies: Weather,
    refuse: bool,
    /// A request that waits for [`Proxy::deliver`], with what follows it on its connection.
    hold: Trap,
    /// A reply that is swallowed.
    swallow: Trap,
    /// A request whose reply is swallowed.
    swallow_reply_to: Trap,
}

impl State {
    fn of(&mut self, way: Way) -> &mut Weather {
        match way {
            Way::Requests => &mut self.requests,
            Way::Replies => &mut self.replies,
        }
    }
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    delivery: Notify,
    holding: watch::Sender<u64>,
    resets: watch::Sender<u64>,
    heals: watch::Sender<u64>,
    give_ups: watch::Sender<u64>,
    connections: AtomicU64,
    requests: AtomicU64,
}

/// A listening proxy. Dropped, it closes all its connections.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens on a free port of this machine, in front of `server`.
    pub async fn to(server: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let accepting = tokio::spawn(carry::accept(listener, server, shared.clone()));
        Ok(Self { addr, shared, accepting })
    }

    /// Where clients connect.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Delays every chunk that goes this way.
    pub fn delay(&self, way: Way, by: Duration) {
        self.shared.state.lock().of(way).delay = by;
    }

    /// A partition: nothing goes this way until it heals; then it arrives, late. Neither
    /// side is told, not even of the other's end.
    pub fn cut(&self, way: Way) {
        self.shared.state.lock().of(way).cut = true;
    }

    /// The server gives up on its connections after this long, as its kernel does when a peer
    /// stays silent: it ends them, and the clients learn of it only when the network heals. A
    /// heal before that calls it off. Must be called inside a tokio runtime.
    pub fn give_up_after(&self, silence: Duration) {
        let shared = self.shared.clone();
        let mut heals = shared.heals.subscribe();
        tokio::spawn(async move {
            tokio::select! {
                _ = heals.changed() => {}
                () = tokio::time::sleep(silence) => {
                    shared.give_ups.send_modify(|count| *count += 1);
                }
            }
        });
    }

    /// Drops everything that goes this way; the other way stays open.
    pub fn drop_one_way(&self, way: Way) {
        self.shared.state.lock().of(way).drop = true;
    }

    /// Swallows the n-th reply from now (1 is the next), and ends its connection: done, but
    /// nobody is told.
    pub fn swallow_reply(&self, nth: u64) {
        self.shared.state.lock().swallow = Trap::Nth(nth);
    }

    /// Swallows what is next replied on the connection that next requests something with
    /// these bytes in it, and ends the connection.
    pub fn swallow_reply_to(&self, bytes: impl AsRef<[u8]>) {
        self.shared.state.lock().swallow_reply_to = Trap::With(bytes.as_ref().to_vec());
    }

    /// Holds the next request back until [`Proxy::deliver`].
    pub fn hold_request(&self) {
        self.shared.state.lock().hold = Trap::Nth(1);
    }

    /// Holds the next request with these bytes in it back until [`Proxy::deliver`].
    pub fn hold_request_with(&self, bytes: impl AsRef<[u8]>) {
        self.shared.state.lock().hold = Trap::With(bytes.as_ref().to_vec());
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

    /// Resets all connections; new ones are let in.
    pub fn reset(&self) {
        self.shared.resets.send_modify(|count| *count += 1);
    }

    /// Turns new connections away, as a server does that is down.
    pub fn refuse(&self) {
        self.shared.state.lock().refuse = true;
    }

    /// Good weather again. What was dropped stays lost, with its connection; what is held or
    /// was cut off is delivered.
    pub fn heal(&self) {
        *self.shared.state.lock() = State::default();
        self.shared.heals.send_modify(|count| *count += 1);
        self.deliver();
    }

    /// How many connections were let in so far.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// How many requests were seen so far: chunks, so those that travel together count as one.
    pub fn requests(&self) -> u64 {
        self.shared.requests.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.accepting.abort();
        self.reset();
    }
}

#[cfg(test)]
mod tests;
