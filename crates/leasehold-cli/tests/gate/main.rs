//! The real gate in front of a real service.

mod client;
mod rule;
mod service;
