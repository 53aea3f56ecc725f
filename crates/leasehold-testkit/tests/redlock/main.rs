//! Redlock, on real servers.

mod conformance;
