//! File descriptors for a thousand clients in one process.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises this process's limit as far as it may.
pub fn raise_limit() {
    let limit = getrlimit(Resource::Nofile);
    // If that is not enough, connecting says so.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
}
