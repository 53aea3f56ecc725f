//! Regressions around runtimes that end, stores that panic or are slow, on the real clock.

mod batches;
mod odd;
mod panics;
mod renewals;
mod runtimes;
mod terms;
