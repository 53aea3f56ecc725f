//! The etcd store on real clusters.

#![cfg(feature = "suite")]

mod cluster;
mod conformance;
mod doctor;
mod ending;
mod etcdctl;
mod losing;
mod partition;
mod scene;
mod secure;
mod stopped;
mod unreachable;
