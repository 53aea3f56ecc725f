//! What every store must pass.
//!
//! * [`world`]: a store under test, its clients, and the passing of time
//! * [`link`]: the way between a client and its store, where requests and replies
//!   are lost, held back and delivered late
//! * [`conformance`]: every property of the lease contract as a case
//! * [`processes`]: the cases that need processes, through the real command
//! * [`servers`]: the real servers that stores speak to
//! * [`faults`]: injectors for every store; [`course`]: runs under them
//! * [`crashes`]: a server killed among many acquirers, again and again
//! * [`history`]: what workers did under faults, and what must hold in it
//! * [`load`]: what a line of waiters costs a store
//! * [`mutants`]: stores and cores that are wrong on purpose, which the cases must reject
//!
//! A new store implements [`world::StoreUnderTest`], is added to [`stores::open`]
//! (the build fails until it is) and then runs all cases.
//!
//! Without the feature `suite` there are only the servers and the faults, and the library has no
//! failpoints: that is what benchmarks measure.

#[cfg(feature = "suite")]
pub mod conformance;
#[cfg(feature = "suite")]
pub mod course;
#[cfg(feature = "suite")]
pub mod crashes;
pub mod faults;
#[cfg(feature = "suite")]
pub mod history;
#[cfg(feature = "suite")]
pub mod link;
#[cfg(feature = "suite")]
pub mod load;
#[cfg(feature = "suite")]
pub mod mutants;
#[cfg(feature = "suite")]
pub mod processes;
#[cfg(feature = "suite")]
pub mod registers;
pub mod servers;
#[cfg(feature = "suite")]
pub mod stores;
#[cfg(feature = "suite")]
pub mod world;
