//! The runtime behind the blocking API: one thread that renews leases between calls.

use tokio::runtime::{Builder, Handle, Runtime};

use crate::error::{Error, ErrorKind, Result};

#[derive(Debug)]
pub(super) struct Engine(Option<Runtime>);

impl Engine {
    pub(super) fn start() -> Result<Self> {
        let mut builder = Builder::new_multi_thread();
        builder.worker_threads(1).thread_name("leasehold").enable_all();
        let runtime = builder.build().map_err(|error| {
            let message = "cannot start the thread that renews leases";
            Error::new(ErrorKind::NoRuntime, message).caused_by(error)
        })?;
        Ok(Self(Some(runtime)))
    }

    /// Waits for a future on the calling thread.
    pub(super) fn wait_for<T>(&self, future: impl Future<Output = T>) -> Result<T> {
        // Tokio would panic; and a blocked executor could not renew its other leases.
        let inside = Handle::try_current();
        if inside.is_ok() {
            let message = "the blocking API was called inside an async runtime: use the async \
                           one there (or Handle::block_on inside spawn_blocking)";
            return Err(Error::new(ErrorKind::NoRuntime, message));
        }
        // It would panic here as well, and a panic at the end of a thread aborts.
        if inside.is_err_and(|error| error.is_thread_local_destroyed()) {
            let message = "the blocking API was called by a thread that has all but ended";
            return Err(Error::new(ErrorKind::NoRuntime, message));
        }
        match &self.0 {
            Some(runtime) => Ok(runtime.block_on(future)),
            None => Err(Error::new(ErrorKind::NoRuntime, "the runtime has ended")),
        }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // Dropping a runtime the plain way panics inside another one.
        if let Some(runtime) = self.0.take() {
            runtime.shutdown_background();
        }
    }
}
