//! Redis and Valkey, on real servers.

mod client;
mod conformance;
mod doctor;
mod foreign;
mod forgetting;
mod keys;
mod network;
mod waiting;
