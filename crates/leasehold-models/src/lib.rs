//! The laboratory: Leasehold's protocols as models, explored to the last state with
//! [stateright](https://docs.rs/stateright), and every rule of theirs left out once, to see
//! what it is there for.
//!
//! * [`quorum`]: tokens from a majority of independent nodes
//! * [`recovery`]: the same with nodes that forget, and with two lists of nodes
//! * [`contract`]: one client, its keeper, and a store that may do anything in any order
//! * [`queue`](mod@queue): waiting in the queue, grants that are pushed, heartbeats that repair
//!
//! [`catalogue`] has them all by name; [`check`] explores one and tells what it saw.

pub mod catalogue;
pub mod check;
pub mod contract;
pub mod queue;
pub mod quorum;
pub mod recovery;
