//! Waiting in a lock's line. Who is near its head follows all of it by one watch; who is
//! far from it waits for one key to go, so that a thousand waiters do not hear of every
//! hand-over.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use etcd_client::{Event, GetOptions, KeyValue, SortOrder, SortTarget, Txn, TxnOp, TxnOpResponse};
use tokio::sync::Notify;

use super::claim::{ahead_of, grant, proof};
use super::error::broken_reply;
use super::line::{Followed, Following, Line, View};
use super::session::Standing;
use super::table::{Entry, Stage};
use super::watcher::{Listener, Watch};
use super::{EtcdStore, KEEPS_PLACE, NEAR};
use crate::backend::{Claim, Turn};
use crate::clock::Moment;
use crate::error::Result;
use crate::name::Name;

/// How often a waiter shows that it is there, at least.
const TICK: Duration = Duration::from_secs(1);
/// How long a request of a waiter may take.
const LIMIT: Duration = Duration::from_secs(2);
/// How long a waiter believes a watch that says nothing, at least.
const SILENCE: Duration = Duration::from_secs(2);

/// A whole line.
pub(super) struct WholeLine {
    pub(super) claims: Vec<KeyValue>,
    pub(super) as_of: i64,
}

/// One waiter, and what it knows.
struct Waiter<'a> {
    store: &'a Arc<EtcdStore>,
    claim: &'a Claim,
    entry: Entry,
    key: Vec<u8>,
    revision: i64,
    view: View,
    read_at: Moment,
    near: Option<Following>,
    far: Option<Beacon>,
}

enum Step {
    Turn,
    Gone,
    Wait,
    Again,
}

impl EtcdStore {
    pub(super) async fn await_turn(self: &Arc<Self>, claim: &Claim) -> Result<Turn> {
        let entry = self.table.lock().get(claim.owner).cloned();
        let Some(entry) = entry else { return Ok(Turn::TryAgain) };
        let (Some(revision), Stage::Waiting(view)) = (entry.revision, entry.stage.clone()) else {
            return Ok(Turn::TryAgain);
        };
        let key = self.layout.lock(&claim.name, entry.session.id).into_bytes();
        let read_at = self.clock.now();
        let (near, far) = (None, None);
        let mut waiter =
            Waiter { store: self, claim, entry, key, revision, view, read_at, near, far };
        loop {
            let now = self.clock.now();
            let wanted = self.table.lock().keep(claim.owner, now + KEEPS_PLACE);
            if !wanted || waiter.entry.session.has_ended() {
                self.table.lock().forget(claim.owner, now);
                return Ok(Turn::TryAgain);
            }
            match waiter.step().await? {
                Step::Again => {}
                Step::Wait => waiter.sleep().await,
                Step::Gone => {
                    self.table.lock().forget(claim.owner, now);
                    return Ok(Turn::TryAgain);
                }
                Step::Turn => return waiter.take().await,
            }
        }
    }

    /// Reads a whole line, first come first.
    pub(super) async fn whole_line(&self, name: &Name) -> Result<WholeLine> {
        let line = self.layout.line(name);
        let options =
            GetOptions::new().with_range(line.end).with_sort(SortTarget::Create, SortOrder::Ascend);
        let reading =
            self.endpoints.on_keys(async |mut kv| kv.get(line.start, Some(options)).await);
        let mut read = reading.await?;
        let as_of = read.header().map_or(0, |header| header.revision());
        Ok(WholeLine { claims: self.claims_among(name, read.take_kvs()), as_of })
    }

    /// The line's log, shared by this client's waiters.
    fn line(&self, name: &Name) -> Following {
        let mut lines = self.lines.lock();
        let usable = lines.get(name).filter(|line| !line.is_broken()).cloned();
        let line = usable.unwrap_or_else(|| {
            let line = Line::new(self.layout.line(name), &self.watcher);
            lines.insert(name.clone(), line.clone());
            line
        });
        line.enter()
    }
}

impl Waiter<'_> {
    async fn step(&mut self) -> Result<Step> {
        if self.view.complete && self.view.ahead.len() <= NEAR {
            self.far = None;
            return self.step_near().await;
        }
        self.near = None;
        self.step_far().await
    }

    async fn step_near(&mut self) -> Result<Step> {
        let line = self.near.get_or_insert_with(|| self.store.line(&self.claim.name));
        let line = Arc::clone(line);
        match line.follow(&mut self.view, &self.key, self.revision) {
            Followed::Gone => Ok(Step::Gone),
            Followed::Broken => {
                self.near = None;
                Ok(Step::Again)
            }
            Followed::NotYet if !self.is_silent() => Ok(Step::Wait),
            Followed::NotYet => {
                // Without a watch, a look now and then has to do.
                let there = self.read().await?;
                let first = self.view.complete && self.view.ahead.is_empty();
                Ok(match (there, first) {
                    (false, _) => Step::Gone,
                    (true, true) => Step::Turn,
                    (true, false) => Step::Wait,
                })
            }
            Followed::UpToDate if self.view.ahead.is_empty() => Ok(Step::Turn),
            Followed::UpToDate if !self.is_silent() => Ok(Step::Wait),
            Followed::UpToDate => {
                let before = self.view.ahead.len();
                let there = self.read().await?;
                if there && self.view.ahead.len() < before {
                    // Somebody left, and the watch did not say so: it may be stuck.
                    self.near = None;
                    self.store.lines.lock().remove(&self.claim.name);
                }
                Ok(if there { Step::Again } else { Step::Gone })
            }
            Followed::ReadAgain => {
                let there = self.read().await?;
                line.read_at(self.view.as_of, &self.store.watcher);
                Ok(if there { Step::Again } else { Step::Gone })
            }
        }
    }

    /// Waits for the key that has as many between it and us as we would follow.
    async fn step_far(&mut self) -> Result<Step> {
        if let Some(far) = &self.far {
            let silent = self.is_silent();
            match far.state() {
                Beacon::NOT_YET | Beacon::WAITS if !silent => return Ok(Step::Wait),
                Beacon::CREATED | Beacon::WAITS => {
                    // It sees everything from now on, or should have: look at what was before.
                    far.signal.waits();
                    let (own, ahead) = self.are_there(far).await?;
                    self.read_at = self.store.clock.now();
                    match (own, ahead) {
                        (false, _) => return Ok(Step::Gone),
                        (true, true) => return Ok(Step::Again),
                        (true, false) => {}
                    }
                }
                _ => {}
            }
        }
        self.far = None;
        if !self.read().await? {
            return Ok(Step::Gone);
        }
        if !(self.view.complete && self.view.ahead.len() <= NEAR) {
            self.far = self.farthest().map(|(created, key)| Beacon::on(created, key, self.store));
        }
        Ok(Step::Again)
    }

    /// Whether our own key is there, and the one that is waited for: to see that does not
    /// cost etcd a look at the whole line.
    async fn are_there(&self, far: &Beacon) -> Result<(bool, bool)> {
        let look = |key: &[u8]| TxnOp::get(key, Some(GetOptions::new().with_keys_only()));
        let txn = Txn::new().and_then([look(&self.key), look(&far.key)]);
        let reading = self.store.endpoints.within(LIMIT, self.store.endpoints.txn(txn));
        let created = |part| match part {
            TxnOpResponse::Get(get) => get.kvs().first().map(KeyValue::create_revision),
            _ => None,
        };
        let mut seen = reading.await?.op_responses().into_iter().map(created);
        let (Some(own), Some(ahead)) = (seen.next(), seen.next()) else {
            return Err(broken_reply());
        };
        Ok((own == Some(self.revision), ahead == Some(far.created)))
    }

    fn farthest(&self) -> Option<(i64, Vec<u8>)> {
        let mut ahead: Vec<_> = self.view.ahead.iter().collect();
        ahead.sort_unstable_by_key(|(created, _)| std::cmp::Reverse(*created));
        ahead.get(NEAR).map(|(created, key)| (*created, key.clone()))
    }

    /// Whether nothing has been heard for long.
    fn is_silent(&self) -> bool {
        let patience = SILENCE.max(self.entry.session.ttl / 3);
        self.read_at.until(self.store.clock.now()) > patience
    }

    /// Reads who is ahead, the nearest ones at least, and whether our own key is there.
    async fn read(&mut self) -> Result<bool> {
        let more = 4 * NEAR as i64;
        let (there, complete) = self.read_nearest(more).await?;
        if there && !complete && self.view.ahead.len() <= NEAR {
            // Nested names fill what was read.
            return Ok(self.read_nearest(0).await?.0);
        }
        Ok(there)
    }

    async fn read_nearest(&mut self, limit: i64) -> Result<(bool, bool)> {
        let line = self.store.layout.line(&self.claim.name);
        let own = TxnOp::get(self.key.clone(), Some(GetOptions::new().with_keys_only()));
        let nearest = GetOptions::new()
            .with_range(line.end)
            .with_max_create_revision(self.revision - 1)
            .with_sort(SortTarget::Create, SortOrder::Descend)
            .with_keys_only()
            .with_limit(limit);
        let txn = Txn::new().and_then([own, TxnOp::get(line.start, Some(nearest))]);
        let reading = self.store.endpoints.within(LIMIT, self.store.endpoints.txn(txn));
        let response = reading.await?;
        let mut looks = response.op_responses().into_iter();
        let (Some(TxnOpResponse::Get(own)), Some(TxnOpResponse::Get(mut line))) =
            (looks.next(), looks.next())
        else {
            return Err(broken_reply());
        };
        let created = own.kvs().first().map(|kv| kv.create_revision());
        let complete = !line.more();
        let crowd = line.count();
        let claims = self.store.claims_among(&self.claim.name, line.take_kvs());
        let as_of = response.header().map_or(0, |header| header.revision());
        self.view = View { ahead: ahead_of(&claims, self.revision), as_of, complete, crowd };
        self.read_at = self.store.clock.now();
        Ok((created == Some(self.revision), complete))
    }

    async fn sleep(&self) {
        let tick = self.store.clock.sleep(TICK);
        match (&self.near, &self.far) {
            (Some(line), _) => {
                let mut changes = line.changes();
                // What changed before we listened is seen by the step that follows a tick,
                // unless it is looked at here.
                let mut view = self.view.clone();
                let followed = line.follow(&mut view, &self.key, self.revision);
                let waits = match followed {
                    Followed::NotYet => true,
                    Followed::UpToDate => view.ahead.len() == self.view.ahead.len(),
                    _ => false,
                };
                if waits {
                    tokio::select! {
                        _ = changes.changed() => {}
                        () = tick => {}
                    }
                }
            }
            (None, Some(far)) => {
                tokio::select! {
                    () = far.signal.changed.notified() => {}
                    () = tick => {}
                }
            }
            (None, None) => tick.await,
        }
    }

    /// It is our turn: the watch has shown our own key to be there. The session is proved
    /// again if its proof is not a young one (etcd#11456: a waiter was granted the lock
    /// after its own session had expired).
    async fn take(self) -> Result<Turn> {
        let (store, session) = (self.store, &self.entry.session);
        let age = session.proved_at().until(store.clock.now());
        if age > session.ttl / 2 && session.prove().await? == Standing::Ended {
            store.table.lock().forget(self.claim.owner, store.clock.now());
            return Ok(Turn::TryAgain);
        }
        if self.view.crowd > 2 * NEAR as i64 {
            // Others would go on hearing of every hand-over through it.
            store.lines.lock().remove(&self.claim.name);
        }
        let proof = proof(session, self.claim);
        let until = proof.at + self.claim.ttl;
        match store.table.lock().advance(self.claim.owner, Stage::Held, self.revision, until) {
            true => Ok(Turn::Granted(grant(self.revision, proof))),
            // Given up meanwhile: its key is being removed.
            false => Ok(Turn::TryAgain),
        }
    }
}

/// A watch on one key ahead.
struct Beacon {
    key: Vec<u8>,
    created: i64,
    signal: Arc<Signal>,
    _watch: Watch,
}

struct Signal {
    state: AtomicU8,
    changed: Notify,
}

impl Beacon {
    const NOT_YET: u8 = 0;
    const CREATED: u8 = 1;
    const WAITS: u8 = 2;
    const OVER: u8 = 3;

    fn on(created: i64, key: Vec<u8>, store: &EtcdStore) -> Self {
        let signal = Arc::new(Signal { state: AtomicU8::new(0), changed: Notify::new() });
        let text = String::from_utf8_lossy(&key).into_owned();
        // Just this key.
        let keys = Range { end: format!("{text}\0"), start: text };
        let watch = store.watcher.watch(keys, true, signal.clone());
        Self { key, created, signal, _watch: watch }
    }

    fn state(&self) -> u8 {
        self.signal.state.load(Ordering::Acquire)
    }
}

impl Signal {
    /// It was seen that the watch is there.
    fn waits(&self) {
        let (from, to) = (Beacon::CREATED, Beacon::WAITS);
        let _ = self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
    }

    fn tell(&self, state: u8) {
        self.state.fetch_max(state, Ordering::AcqRel);
        self.changed.notify_one();
    }
}

impl Listener for Signal {
    fn created(&self, _revision: i64) {
        self.tell(Beacon::CREATED);
    }

    fn seen(&self, _events: &[Event]) {
        self.tell(Beacon::OVER);
    }

    fn broken(&self) {
        self.tell(Beacon::OVER);
    }
}
