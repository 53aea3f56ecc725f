//! Redis and Valkey, on real servers.

mod conformance;
