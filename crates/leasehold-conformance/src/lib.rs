//! What every store must pass, and what must not pass it. It has no drivers, so a store of
//! your own can use it.
//!
//! * [`fixture`]: a store under test, its clients, and the passing of time
//! * [`faulty_backend`]: between a client and its store; it loses requests and replies, holds
//!   them back and delivers them late
//! * [`cases`]: every property of the lease contract
//! * [`load`]: what a queue of waiters costs a store
//! * [`mutants`]: stores and cores that are wrong on purpose, which the cases must reject
//! * [`stores`]: the stores without a server
//!
//! A new store implements [`fixture::StoreUnderTest`] and runs [`cases::run_all`].

pub mod cases;
pub mod faulty_backend;
pub mod fixture;
pub mod load;
pub mod mutants;
pub mod stores;
