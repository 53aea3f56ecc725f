//! Times as stores keep them: whole microseconds.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A span for a store; the longest it can write for one beyond that.
pub(in crate::backend) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// A span that a store wrote; a negative one is over.
pub(in crate::backend) fn from_micros(micros: i64) -> Duration {
    Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}

/// A wall clock's time for a store.
pub(in crate::backend) fn since_epoch(time: SystemTime) -> i64 {
    micros(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

/// The wall clock's time that a store wrote.
pub(in crate::backend) fn at(micros: i64) -> SystemTime {
    UNIX_EPOCH + from_micros(micros)
}
