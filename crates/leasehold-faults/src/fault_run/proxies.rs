//! The way between each worker and the servers: a proxy of its own for every pair, so that one
//! worker is struck and the others are not.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result};
use fastrand::Rng;
use tokio::runtime::Runtime;

use super::fault::Fault;
use super::schedule::Strike;
use crate::faults::proxy::{Proxy, Way};

/// All proxies. Dropped, they are closed.
#[derive(Debug)]
pub(super) struct Proxies {
    /// For each worker, in the order of the servers.
    proxies: Vec<Vec<Proxy>>,
    /// The servers end connections that are silent for between one and two of these.
    gives_up: Option<Duration>,
    runtime: Runtime,
}

impl Proxies {
    pub(super) fn open(
        workers: usize,
        servers: &[SocketAddr],
        gives_up: Option<Duration>,
    ) -> Result<Self> {
        let mut build = tokio::runtime::Builder::new_multi_thread();
        let runtime = build.worker_threads(1).enable_all().build()?;
        let mut proxies = Vec::new();
        for _ in 0..workers {
            let to = |server: &SocketAddr| runtime.block_on(Proxy::to(*server));
            let row: std::io::Result<_> = servers.iter().map(to).collect();
            proxies.push(row.context("a proxy")?);
        }
        Ok(Self { proxies, gives_up, runtime })
    }

    /// Where a worker finds the servers.
    pub(super) fn of(&self, slot: usize) -> Vec<SocketAddr> {
        self.proxies[slot].iter().map(Proxy::addr).collect()
    }

    /// Strikes the ways of one worker; what exactly, the strike's own draw says.
    pub(super) fn inject(&self, fault: Fault, strike: &Strike) {
        let _inside = self.runtime.enter();
        let mut rng = Rng::with_seed(strike.draw);
        let proxies = &self.proxies[strike.slot];
        match fault {
            Fault::Partition => {
                cut(proxies, &mut rng);
                if let Some(silence) = self.gives_up {
                    let silence = silence.mul_f64(1.0 + rng.f64());
                    proxies.iter().for_each(|proxy| proxy.give_up_after(silence));
                }
            }
            _ => proxies.iter().for_each(|proxy| disturb(proxy, strike, &mut rng)),
        }
    }

    pub(super) fn heal(&self, strike: &Strike) {
        let _inside = self.runtime.enter();
        self.proxies[strike.slot].iter().for_each(Proxy::heal);
    }
}

/// From all servers or, where there are several, from one or most of them, which are then
/// still in touch with the others; both ways or one way. Mostly from all or most: who misses
/// one of several servers may lose nothing by it, and then the run shows nothing.
fn cut(proxies: &[Proxy], rng: &mut Rng) {
    let ways: &[Way] = match rng.u32(..4) {
        0 | 1 => &[Way::Requests, Way::Replies],
        2 => &[Way::Requests],
        _ => &[Way::Replies],
    };
    let mut chosen: Vec<_> = proxies.iter().collect();
    rng.shuffle(&mut chosen);
    match rng.u32(..5) {
        0 => chosen.truncate(1),
        1 => chosen.truncate(proxies.len() / 2 + 1),
        _ => {}
    }
    for proxy in chosen {
        ways.iter().for_each(|way| proxy.cut(*way));
    }
}

fn disturb(proxy: &Proxy, strike: &Strike, rng: &mut Rng) {
    let some = |rng: &mut Rng, most: Duration| most.mul_f64(rng.f64());
    match rng.u32(..5) {
        0 => proxy.delay(Way::Requests, some(rng, strike.lasts / 4)),
        1 => proxy.delay(Way::Replies, some(rng, strike.lasts / 4)),
        2 => proxy.reset(),
        3 => proxy.swallow_reply(rng.u64(1..=3)),
        _ => proxy.hold_request(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{ErrorKind, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    use super::*;

    /// A server that sends back what it hears.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let addr = listener.local_addr().unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                thread::spawn(move || {
                    let mut byte = [0];
                    while stream.read_exact(&mut byte).is_ok() && stream.write_all(&byte).is_ok() {}
                });
            }
        });
        addr
    }

    fn answers(stream: &mut TcpStream, wait: Duration) -> bool {
        stream.set_read_timeout(Some(wait)).unwrap();
        match stream.read_exact(&mut [0]) {
            Ok(()) => true,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                false
            }
        }
    }

    #[test]
    fn one_worker_is_cut_off_and_the_other_is_not() {
        let proxies = Proxies::open(2, &[echo()], None).unwrap();
        let connect = |slot: usize| TcpStream::connect(proxies.of(slot)[0]).unwrap();
        let (mut struck, mut spared) = (connect(0), connect(1));
        let long = Duration::from_secs(30);
        for draw in 0..8 {
            let strike = Strike { at: Duration::ZERO, slot: 0, lasts: Duration::ZERO, draw };
            proxies.inject(Fault::Partition, &strike);
            struck.write_all(&[1]).unwrap();
            spared.write_all(&[1]).unwrap();
            assert!(answers(&mut spared, long));
            assert!(!answers(&mut struck, Duration::from_millis(50)), "draw {draw}");
            proxies.heal(&strike);
            assert!(answers(&mut struck, long), "it comes late");
        }
    }
}
