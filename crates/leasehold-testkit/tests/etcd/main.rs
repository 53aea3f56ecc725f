//! The etcd store on real clusters.

mod conformance;
