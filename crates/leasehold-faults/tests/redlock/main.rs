//! Redlock, on real servers.

#![cfg(feature = "suite")]

mod clocks;
mod conformance;
mod counting;
mod doctor;
mod failing;
mod forgetting;
mod lists;
mod scene;
mod tls;
