//! What several stores need, written once.

// With fewer stores some of it has no user.
#![cfg_attr(
    not(all(
        feature = "sqlite",
        feature = "redis",
        feature = "postgres",
        feature = "etcd",
        feature = "zookeeper"
    )),
    allow(dead_code)
)]

pub(super) mod hints;
#[cfg(feature = "remote")]
pub(super) mod ledger;
pub(super) mod owner_map;
#[cfg(feature = "remote")]
pub(super) mod reconnect;
#[cfg(any(feature = "sqlite", feature = "remote"))]
pub(super) mod time;
#[cfg(any(feature = "postgres", feature = "redis"))]
pub(super) mod tls;
pub(super) mod tombstone;
#[cfg(feature = "remote")]
pub(super) mod url;
#[cfg(any(feature = "sqlite", feature = "remote"))]
pub(super) mod verbs;
