//! PostgreSQL: the whole suite in both modes, and what only happens there.

#![cfg(feature = "suite")]

mod batches;
mod clocks;
mod conformance;
mod crashes;
mod interop;
mod lifelines;
mod order;
mod pooling;
mod scene;
mod sessions;
mod settings;
mod setup;
mod sweeping;
mod tokens;
mod transactions;
mod waiters;
