//! Faults, one file each, for every store to reuse. Each injector says why when it is
//! not possible on this machine; a run then shows that instead of passing in silence.

pub mod disk;
pub mod faketime;
pub mod freezer;
pub mod namespace;
pub mod proxy;
pub mod server;
pub mod signals;
