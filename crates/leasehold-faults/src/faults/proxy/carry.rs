//! How the proxy carries chunks from one side to the other.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::{Shared, Way};

/// Lets connections in until the proxy is dropped.
pub(super) async fn accept(listener: TcpListener, server: SocketAddr, shared: Arc<Shared>) {
    while let Ok((client, _)) = listener.accept().await {
        if shared.state.lock().refuse {
            reset(&client);
            continue;
        }
        shared.connections.fetch_add(1, Ordering::Relaxed);
        let resets = shared.resets.subscribe();
        let connection = Connection {
            shared: shared.clone(),
            torn: AtomicBool::new(false),
            swallows: AtomicBool::new(false),
        };
        tokio::spawn(connection.join(client, server, resets));
    }
}

/// Ends a connection as a server does that knows nothing of it.
fn reset(stream: &TcpStream) {
    // If it cannot be, it ends without the reset.
    let _ = stream.set_zero_linger();
}

/// One connection through the proxy.
struct Connection {
    shared: Arc<Shared>,
    /// Something was dropped from it: it cannot go on when the network heals.
    torn: AtomicBool,
    /// The next reply is swallowed.
    swallows: AtomicBool,
}

/// A reply was swallowed.
struct Swallowed;

impl Connection {
    async fn join(
        self,
        mut client: TcpStream,
        server: SocketAddr,
        mut resets: watch::Receiver<u64>,
    ) {
        let mut give_ups = self.shared.give_ups.subscribe();
        let ended = tokio::select! {
            ended = self.carry(&mut client, server) => ended,
            _ = resets.changed() => Err(Swallowed),
            () = self.healed_but_torn() => Err(Swallowed),
            // The server's side ends with the future that carries.
            _ = give_ups.changed() => {
                self.healed().await;
                Err(Swallowed)
            }
        };
        if ended.is_err() {
            reset(&client);
        }
    }

    async fn healed(&self) {
        // Fails only when the proxy is gone.
        let _ = self.shared.heals.subscribe().changed().await;
    }

    async fn healed_but_torn(&self) {
        let mut heals = self.shared.heals.subscribe();
        while heals.changed().await.is_ok() {
            if self.torn.load(Ordering::Relaxed) {
                return;
            }
        }
        std::future::pending().await
    }

    async fn carry(&self, client: &mut TcpStream, server: SocketAddr) -> Result<(), Swallowed> {
        self.while_cut(Way::Requests).await;
        // A server that refuses is seen by the client as a connection that is reset.
        let mut server = TcpStream::connect(server).await.map_err(|_| Swallowed)?;
        for stream in [&*client, &server] {
            let _ = stream.set_nodelay(true);
        }
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        // To the end of both: a client that leaves is seen by the server only after what it
        // sent was delivered.
        tokio::try_join!(
            self.pump(from_client, to_server, Way::Requests),
            self.pump(from_server, to_client, Way::Replies),
        )?;
        Ok(())
    }

    async fn pump(
        &self,
        mut from: impl AsyncRead + Unpin,
        mut to: impl AsyncWrite + Unpin,
        way: Way,
    ) -> Result<(), Swallowed> {
        let mut chunk = vec![0; 64 * 1024];
        loop {
            // A side that was reset is seen by the other as one that ended.
            let length = from.read(&mut chunk).await.unwrap_or(0);
            self.while_cut(way).await;
            if length == 0 {
                let _ = to.shutdown().await;
                return Ok(());
            }
            self.pass(&chunk[..length], &mut to, way).await?;
        }
    }

    async fn pass(
        &self,
        chunk: &[u8],
        to: &mut (impl AsyncWrite + Unpin),
        way: Way,
    ) -> Result<(), Swallowed> {
        match way {
            Way::Requests => self.hold(chunk).await,
            Way::Replies => self.swallow(chunk)?,
        }
        let weather = *self.shared.state.lock().of(way);
        if !weather.delay.is_zero() {
            tokio::time::sleep(weather.delay).await;
        }
        if weather.drop || self.torn.load(Ordering::Relaxed) {
            self.torn.store(true, Ordering::Relaxed);
            return Ok(());
        }
        self.while_cut(way).await;
        // Nobody listens any more: what is still to be read is read to its end.
        let _ = to.write_all(chunk).await;
        Ok(())
    }

    async fn hold(&self, chunk: &[u8]) {
        let shared = &self.shared;
        shared.requests.fetch_add(1, Ordering::Relaxed);
        let held = {
            let mut state = shared.state.lock();
            if state.swallow_reply_to.catches(chunk) {
                self.swallows.store(true, Ordering::Relaxed);
            }
            // Under the lock, so that a delivery that comes at once is not missed.
            state.hold.catches(chunk).then(|| shared.delivery.notified())
        };
        if let Some(delivery) = held {
            shared.holding.send_modify(|count| *count += 1);
            delivery.await;
            shared.holding.send_modify(|count| *count -= 1);
        }
    }

    fn swallow(&self, chunk: &[u8]) -> Result<(), Swallowed> {
        let counted = self.shared.state.lock().swallow.catches(chunk);
        match counted || self.swallows.load(Ordering::Relaxed) {
            true => Err(Swallowed),
            false => Ok(()),
        }
    }

    async fn while_cut(&self, way: Way) {
        let mut heals = self.shared.heals.subscribe();
        while self.shared.state.lock().of(way).cut {
            if heals.changed().await.is_err() {
                return;
            }
        }
    }
}
