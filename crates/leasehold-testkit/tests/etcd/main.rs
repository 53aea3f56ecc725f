//! The etcd store on real clusters.

mod cluster;
mod conformance;
mod doctor;
mod etcdctl;
mod losing;
mod partition;
mod scene;
mod secure;
mod stopped;
mod unreachable;
