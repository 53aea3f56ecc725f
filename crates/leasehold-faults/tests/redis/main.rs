//! Redis and Valkey, on real servers.

#![cfg(feature = "suite")]

mod client;
mod conformance;
mod dead_waiters;
mod doctor;
mod failover;
mod foreign;
mod foreign_clients;
mod forgetting;
mod keys;
mod network;
mod passwords;
mod replicas;
mod tls;
mod waiting;
