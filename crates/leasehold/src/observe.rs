//! What an operator sees of a client: metrics, log lines and the longest stall of this
//! process. All of it hangs on the same events that [`Locks::events`](crate::Locks::events)
//! tells.

pub(crate) use log::log;
pub(crate) use meter::{ClassId, Meter};
pub use stall::Stall;
pub(crate) use stall::StallWatch;

mod log;
pub mod meter;
mod stall;
