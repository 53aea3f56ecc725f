//! What several stores need, written once.
#![allow(dead_code, unused_imports, unused_macros)] // until all stores use it

pub(super) mod hints;
#[cfg(feature = "remote")]
pub(super) mod ledger;
pub(super) mod owner_map;
#[cfg(feature = "remote")]
pub(super) mod reconnect;
#[cfg(any(feature = "sqlite", feature = "remote"))]
pub(super) mod time;
pub(super) mod tombstone;
#[cfg(feature = "remote")]
pub(super) mod url;
#[cfg(any(feature = "sqlite", feature = "remote"))]
pub(super) mod verbs;
