//! Claims that are under way, and those who wait for their end.

use std::sync::Arc;

use tokio::sync::Semaphore;

/// Open while a request is under way. Dropping it says that it is over, however it ended.
#[derive(Debug)]
pub(super) struct UnderWay(Arc<Semaphore>);

/// What a claim that is under way leaves behind for others to wait on.
#[derive(Debug, Clone)]
pub(super) struct Asking(Arc<Semaphore>);

impl UnderWay {
    pub(super) fn new() -> Self {
        Self(Arc::new(Semaphore::new(0)))
    }

    pub(super) fn asking(&self) -> Asking {
        Asking(self.0.clone())
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.close();
    }
}

impl Asking {
    /// Completes when the request is over.
    pub(super) async fn over(&self) {
        // It never has a permit, so this is the end of it.
        let _ = self.0.acquire().await;
    }
}
