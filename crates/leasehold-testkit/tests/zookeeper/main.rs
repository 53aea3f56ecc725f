//! The ZooKeeper store on real servers.

mod conformance;
