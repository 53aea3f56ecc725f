//! The way to the cluster: its members, and one connection to each. Nothing here knows of locks.

mod answer;
mod channel;
mod connection;
mod deferred_wakes;
mod endpoints;
mod upload;

pub(super) use endpoints::Endpoints;
