//! A connection that is made when it is first needed, and again when it is lost.

use std::fmt;
use std::time::Duration;

use parking_lot::Mutex;

use crate::clock::{Clock, Moment};
use crate::error::{Error, Result};

/// What can be lost, and made again.
pub(in crate::backend) trait Connected: Clone {
    fn is_open(&self) -> bool;
}

/// The current connection. Callers that find none make one, one caller at a time; the others
/// then get that one.
pub(in crate::backend) struct Reconnect<T> {
    clock: Clock,
    current: Mutex<Option<T>>,
    /// Held while connecting. When and how the last attempt failed.
    attempt: tokio::sync::Mutex<Option<(Moment, Error)>>,
    fails_fast_for: Duration,
}

impl<T: Connected> Reconnect<T> {
    /// A failed attempt answers all who ask in the given time after it: zero if each of them
    /// makes an attempt of its own.
    pub(in crate::backend) fn new(clock: Clock, fails_fast_for: Duration) -> Self {
        let (current, attempt) = (Mutex::new(None), tokio::sync::Mutex::new(None));
        Self { clock, current, attempt, fails_fast_for }
    }

    /// The connection, if it is open.
    pub(in crate::backend) fn current(&self) -> Option<T> {
        self.current.lock().as_ref().filter(|current| current.is_open()).cloned()
    }

    /// The open connection, or a new one. An error means that nothing was sent.
    ///
    /// Dropping the future abandons an attempt; the next caller makes another.
    pub(in crate::backend) async fn get<F>(&self, connect: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        match self.current() {
            Some(current) => Ok(current),
            // Boxed, because it is rare: every request would have room for it otherwise.
            None => Box::pin(self.connect(connect)).await,
        }
    }

    async fn connect<F>(&self, connect: impl FnOnce() -> F) -> Result<T>
    where
        F: Future<Output = Result<T>>,
    {
        let mut failed = self.attempt.lock().await;
        if let Some(current) = self.current() {
            return Ok(current);
        }
        if let Some((at, error)) = &*failed
            && at.until(self.clock.now()) < self.fails_fast_for
        {
            return Err(error.clone());
        }
        let connected = connect().await.map_err(Error::not_applied);
        *failed = connected.as_ref().err().map(|error| (self.clock.now(), error.clone()));
        if let Ok(made) = &connected {
            self.put(made.clone());
        }
        connected
    }

    /// Uses a connection that was made elsewhere.
    pub(in crate::backend) fn put(&self, made: T) {
        *self.current.lock() = Some(made);
    }

    /// Takes the current connection out, open or not.
    pub(in crate::backend) fn take(&self) -> Option<T> {
        self.current.lock().take()
    }

    /// Lets go of the current connection if it is closed.
    pub(in crate::backend) fn drop_closed(&self) {
        // Dropped outside of the lock.
        let _closed = self.current.lock().take_if(|current| !current.is_open());
    }
}

impl<T: fmt::Debug> fmt::Debug for Reconnect<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Reconnect").field(&*self.current.lock()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;
    use crate::error::{ErrorKind, Outcome};

    #[derive(Debug, Clone, Default)]
    struct Connection(Arc<AtomicBool>);

    impl Connected for Connection {
        fn is_open(&self) -> bool {
            !self.0.load(Ordering::Relaxed)
        }
    }

    fn reconnect(fails_fast_for: Duration) -> Reconnect<Connection> {
        Reconnect::new(Clock::boot(), fails_fast_for)
    }

    #[tokio::test]
    async fn all_who_wait_get_the_one_connection() {
        let (reconnect, made) = (reconnect(Duration::ZERO), AtomicU32::new(0));
        let connect = async || {
            tokio::task::yield_now().await;
            made.fetch_add(1, Ordering::Relaxed);
            Ok(Connection::default())
        };
        let (one, other) = tokio::join!(reconnect.get(connect), reconnect.get(connect));
        assert!(Arc::ptr_eq(&one.unwrap().0, &other.unwrap().0));
        assert_eq!(made.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_closed_connection_is_made_again() {
        let reconnect = reconnect(Duration::ZERO);
        let first = reconnect.get(async || Ok(Connection::default())).await.unwrap();
        first.0.store(true, Ordering::Relaxed);
        assert!(reconnect.current().is_none());
        let second = reconnect.get(async || Ok(Connection::default())).await.unwrap();
        assert!(!Arc::ptr_eq(&first.0, &second.0));
        reconnect.drop_closed();
        assert!(reconnect.current().is_some());
    }

    #[tokio::test]
    async fn a_failure_speaks_for_those_who_ask_just_after_it() {
        let refused = async || Err(Error::new(ErrorKind::Unreachable, "refused"));
        for (span, reached) in [(Duration::from_secs(600), false), (Duration::ZERO, true)] {
            let reconnect = reconnect(span);
            let error = reconnect.get(refused).await.unwrap_err();
            assert_eq!(error.outcome(), Outcome::NotApplied);
            assert_eq!(reconnect.get(async || Ok(Connection::default())).await.is_ok(), reached);
        }
    }

    #[tokio::test]
    async fn an_abandoned_attempt_stands_in_nobodys_way() {
        let reconnect = reconnect(Duration::ZERO);
        let mut abandoned = Box::pin(reconnect.get(std::future::pending));
        assert!(futures_util::poll!(&mut abandoned).is_pending());
        drop(abandoned);
        assert!(reconnect.get(async || Ok(Connection::default())).await.is_ok());
    }
}
