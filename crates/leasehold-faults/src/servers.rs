//! Real servers for tests, started on free loopback ports in temporary folders.
//!
//! A server lives as long as its value. It is ended by its process id, and nothing else is.

use std::net::{SocketAddr, TcpListener};
use std::time::Duration;

pub use etcd::Etcd;
pub use objects::Objects;
pub use pgbouncer::PgBouncer;
pub use postgres::Postgres;
pub use process::Process;
pub use redis::{Authority, Redis, RedisCluster, RedisSentinel, Redlock};
pub use zookeeper::Zookeeper;

pub mod etcd;
pub mod objects;
pub mod pgbouncer;
pub mod postgres;
pub mod process;
pub mod redis;
pub mod zookeeper;

/// How long a server may take until it serves, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// How often another port is tried: a free one may be taken before the server binds it.
pub const ATTEMPTS: usize = 5;

/// A port of the loopback interface that is free just now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.local_addr().expect("it is bound").port()
}

/// The loopback address with this port.
pub fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}
