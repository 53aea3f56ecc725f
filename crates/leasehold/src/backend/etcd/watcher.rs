//! One watch stream for everything that this client watches. When it breaks, or the member
//! behind it is left, every listener is told so and watches again if it still wants to.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use etcd_client::{Event, WatchFilterType, WatchOptions, WatchResponse};
use parking_lot::Mutex;
use tokio::sync::{mpsc, watch};

use super::transport::Endpoints;

/// How long to wait after a stream on which nothing could be watched.
const PAUSE: Duration = Duration::from_secs(1);

/// What a watch tells.
#[derive(Clone, Copy)]
pub(super) enum Heard<'a> {
    /// It sees everything after this revision.
    Created(i64),
    /// It has seen this: events of one revision always come together.
    Events(&'a [Event]),
    /// It sees nothing any more.
    Broken,
}

/// Hears what a watch tells. Called by the stream's task: it must not block.
type Listener = dyn Fn(Heard<'_>) + Send + Sync;

pub(super) struct Watcher {
    endpoints: Arc<Endpoints>,
    next_id: AtomicI64,
    orders: Mutex<Option<mpsc::UnboundedSender<Order>>>,
}

enum Order {
    Watch(Wish),
    Cancel(i64),
}

struct Wish {
    id: i64,
    start: String,
    options: WatchOptions,
    listener: Arc<Listener>,
}

/// A watch. Dropped, it is cancelled.
pub(super) struct Watch {
    id: i64,
    orders: mpsc::UnboundedSender<Order>,
    listener: Weak<Listener>,
}

impl Watch {
    /// Whether it sees nothing any more: then nobody has its listener.
    pub(super) fn is_over(&self) -> bool {
        self.listener.strong_count() == 0
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.orders.send(Order::Cancel(self.id));
    }
}

impl Watcher {
    pub(super) fn new(endpoints: Arc<Endpoints>) -> Self {
        Self { endpoints, next_id: AtomicI64::new(1), orders: Mutex::default() }
    }

    /// Watches these keys from now on. (From the *present* revision: etcd serves a watch
    /// that starts in the past by a loop that runs every 100 ms.)
    pub(super) fn watch(
        &self,
        keys: Range<String>,
        only_deletes: bool,
        listener: impl Fn(Heard<'_>) + Send + Sync + 'static,
    ) -> Watch {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let listener: Arc<Listener> = Arc::new(listener);
        let listens = Arc::downgrade(&listener);
        let mut options = WatchOptions::new().with_range(keys.end).with_watch_id(id);
        if only_deletes {
            options = options.with_filters([WatchFilterType::NoPut]);
        }
        let mut order = Order::Watch(Wish { id, start: keys.start, options, listener });
        let mut orders = self.orders.lock();
        loop {
            let sender = orders.get_or_insert_with(|| self.start());
            match sender.send(order) {
                Ok(()) => return Watch { id, orders: sender.clone(), listener: listens },
                // The stream has ended: the next one takes it.
                Err(unsent) => order = unsent.0,
            }
            *orders = None;
        }
    }

    fn start(&self) -> mpsc::UnboundedSender<Order> {
        let (sender, orders) = mpsc::unbounded_channel();
        let (endpoints, turns) = (self.endpoints.clone(), self.endpoints.turns());
        let watching = Watching { endpoints, orders, turns, listeners: HashMap::new() };
        tokio::spawn(watching.run());
        sender
    }
}

/// The task behind the stream.
struct Watching {
    endpoints: Arc<Endpoints>,
    orders: mpsc::UnboundedReceiver<Order>,
    turns: watch::Receiver<u64>,
    listeners: HashMap<i64, Arc<Listener>>,
}

impl Watching {
    async fn run(mut self) {
        self.watch().await;
        // Orders that come now are turned away and start another stream.
        self.orders.close();
        while let Some(order) = self.orders.recv().await {
            if let Order::Watch(wish) = order {
                (wish.listener)(Heard::Broken);
            }
        }
        for listener in self.listeners.values() {
            listener(Heard::Broken);
        }
    }

    async fn watch(&mut self) {
        let first = loop {
            match self.orders.recv().await {
                Some(Order::Watch(wish)) => break wish,
                Some(Order::Cancel(_)) => {}
                None => return,
            }
        };
        let Wish { id, start, options, listener } = first;
        self.listeners.insert(id, listener);
        let tokens = self.endpoints.tokens();
        let opening = self.endpoints.call(async |mut etcd| etcd.watch(start, Some(options)).await);
        let opened = tokio::select! {
            opened = opening => opened,
            _ = self.turns.changed() => return,
        };
        let Ok(mut stream) = opened else { return };
        let mut served = false;
        loop {
            tokio::select! {
                order = self.orders.recv() => {
                    let sent = match order {
                        Some(Order::Watch(Wish { id, start, options, listener })) => {
                            self.listeners.insert(id, listener);
                            stream.watch(start, Some(options)).await
                        }
                        Some(Order::Cancel(id)) => match self.listeners.remove(&id) {
                            Some(_) => stream.cancel(id).await,
                            None => Ok(()),
                        },
                        None => return,
                    };
                    if sent.is_err() {
                        return;
                    }
                }
                message = stream.message() => match message {
                    // It was refused when it was asked for. Which one is not said: etcd 3.4 and
                    // later answer with an id that is nobody's.
                    Ok(Some(response)) if response.created() && response.canceled() => {
                        tracing::debug!(reason = response.cancel_reason(), "etcd refused a watch");
                        // A stream keeps the token that it was opened with. The next one has a
                        // new token; if nothing was served on this one, that may not help, and
                        // is not tried at once.
                        self.endpoints.renew_token(tokens).await;
                        if !served {
                            tokio::time::sleep(PAUSE).await;
                        }
                        return;
                    }
                    Ok(Some(response)) => {
                        served = true;
                        self.tell(&response);
                    }
                    Ok(None) | Err(_) => return,
                },
                _ = self.turns.changed() => return,
            }
        }
    }

    fn tell(&mut self, response: &WatchResponse) {
        let id = response.watch_id();
        let Some(listener) = self.listeners.get(&id) else { return };
        if response.canceled() {
            listener(Heard::Broken);
            self.listeners.remove(&id);
            return;
        }
        if response.created() {
            listener(Heard::Created(response.header().map_or(0, |header| header.revision())));
        }
        if !response.events().is_empty() {
            listener(Heard::Events(response.events()));
        }
    }
}
