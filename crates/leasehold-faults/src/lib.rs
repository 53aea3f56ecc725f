//! Real servers, what can go wrong with them, and what must hold all the same.
//!
//! * [`servers`]: the real servers that stores speak to; [`stores`]: those as the suite sees them
//! * [`faults`]: injectors for every store; [`fault_run`]: runs under them
//! * [`processes`]: cases that need processes, through the real command
//! * [`crashes`]: a server killed among many acquirers, again and again
//! * [`history`]: what workers did under faults, and what must hold in it
//!
//! A new store is added to [`stores::open`] (its tests fail until it is).
//!
//! Without the feature `suite` there are only the servers and the faults, and the library has no
//! failpoints: that is what benchmarks measure.

#[cfg(feature = "suite")]
pub mod crashes;
#[cfg(feature = "suite")]
pub mod fault_run;
pub mod faults;
#[cfg(feature = "suite")]
pub mod history;
#[cfg(feature = "suite")]
pub mod processes;
#[cfg(feature = "suite")]
pub mod registers;
pub mod servers;
#[cfg(feature = "suite")]
pub mod stores;
