//! Waiting for file descriptors of our own: timers and processes.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Registers a descriptor with the current runtime, to wait until it is readable.
pub(crate) fn watch(fd: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // The constructor is deprecated because a *wrapper* type could close or replace
    // its descriptor while registered (tokio#8587); an OwnedFd cannot, and the
    // replacement is an unsafe function, which this crate forbids.
    #[expect(deprecated, reason = "sound for OwnedFd; the alternative is unsafe code")]
    AsyncFd::with_interest(fd, Interest::READABLE)
}
