//! The etcd store on real clusters.

mod cluster;
mod conformance;
mod doctor;
mod etcdctl;
mod losing;
mod scene;
mod secure;
