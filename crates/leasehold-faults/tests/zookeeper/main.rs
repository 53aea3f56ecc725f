//! The ZooKeeper store on real servers.

#![cfg(feature = "suite")]

mod access;
mod conformance;
mod contending;
mod doctor;
mod events;
mod faults;
mod layout;
mod nodes;
mod orphans;
mod scene;
mod sessions;
mod tls;
mod waiting;
