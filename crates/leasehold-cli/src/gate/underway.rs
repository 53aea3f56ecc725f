//! The requests that the service has not answered yet, for the gate's last words.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hyper::header::HeaderValue;
use hyper::{Method, Request};
use leasehold::fence::http::FENCING_TOKEN;

/// The requests of one worker. Clones share them.
#[derive(Clone, Default)]
pub(super) struct Underway(Arc<Mutex<Requests>>);

#[derive(Default)]
struct Requests {
    last: u64,
    open: BTreeMap<u64, Open>,
}

struct Open {
    method: Method,
    token: Option<HeaderValue>,
    since: Instant,
}

/// A request that is under way, until this is dropped.
pub(super) struct Entry {
    of: Underway,
    number: u64,
}

impl Underway {
    pub(super) fn enter<B>(&self, request: &Request<B>) -> Entry {
        let open = Open {
            method: request.method().clone(),
            token: request.headers().get(FENCING_TOKEN).cloned(),
            since: Instant::now(),
        };
        let mut requests = self.lock();
        requests.last += 1;
        let number = requests.last;
        requests.open.insert(number, open);
        drop(requests);
        Entry { of: self.clone(), number }
    }

    /// One phrase for each.
    pub(super) fn describe(&self) -> Vec<String> {
        let describe = |open: &Open| {
            let token = open.token.as_ref().and_then(|token| token.to_str().ok());
            let token = token.map_or("no token".to_owned(), |token| format!("the token {token}"));
            let since = Duration::from_secs(open.since.elapsed().as_secs());
            format!("{} with {token}, for {}", open.method, humantime::format_duration(since))
        };
        self.lock().open.values().map(describe).collect()
    }

    fn lock(&self) -> MutexGuard<'_, Requests> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.of.lock().open.remove(&self.number);
    }
}
