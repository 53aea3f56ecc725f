//! A backend between a client and its store. A case orders a fault for the next
//! request of a kind: its reply is swallowed or held back, the request itself is
//! lost or delivered late. It also counts what was sent, in what batches, and what is
//! under way.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use leasehold::backend::{
    Backend, Claim, Finding, Force, ForceRelease, Grant, Hint, Hold, Limits, LockId, LockInfo,
    Release, Renewal, Reply, State as Records, Turn, Verdict,
};
use leasehold::clock::Clock;
use leasehold::{Error, ErrorKind, Guarantees, Name, Operation};
use parking_lot::Mutex;
use tokio::sync::oneshot;

/// A backend with faults on order.
#[derive(Debug)]
pub struct FaultyBackend {
    store: Arc<dyn Backend>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    orders: HashMap<Operation, Vec<Fault>>,
    cut: bool,
    limits: Option<Limits>,
    batches_fail: bool,
    sent: HashMap<Operation, usize>,
    answered: HashMap<Operation, usize>,
    under_way: usize,
    most_under_way: usize,
    largest_batch: usize,
    same_name_in_a_batch: bool,
}

#[derive(Debug)]
enum Fault {
    SwallowReply,
    LoseRequest,
    Refuse,
    BadBatch,
    HoldReply(oneshot::Receiver<()>),
    HoldRejection(oneshot::Receiver<()>),
    HoldRequest { deliver: oneshot::Receiver<()>, delivered: oneshot::Sender<()> },
}

/// A request from when it is sent until its client has the answer or gives up.
struct UnderWay(Arc<FaultyBackend>);

impl UnderWay {
    fn new(faulty: Arc<FaultyBackend>) -> Self {
        let mut state = faulty.state.lock();
        state.under_way += 1;
        state.most_under_way = state.most_under_way.max(state.under_way);
        drop(state);
        Self(faulty)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.state.lock().under_way -= 1;
    }
}

/// A request that was held back.
#[derive(Debug)]
pub struct HeldRequest {
    deliver: oneshot::Sender<()>,
    delivered: oneshot::Receiver<()>,
}

impl HeldRequest {
    /// Delivers it now, and waits until the store has done with it.
    pub async fn deliver(self) {
        self.deliver.send(()).expect("the request was sent");
        crate::fixture::within_bound("the late delivery", self.delivered).await.expect("delivered");
    }
}

impl FaultyBackend {
    pub(crate) fn new(store: Arc<dyn Backend>) -> Arc<Self> {
        Arc::new(Self { store, state: Mutex::default() })
    }

    /// The next such request is applied, but its reply never comes.
    pub fn swallow_reply(&self, operation: Operation) {
        self.order(operation, Fault::SwallowReply);
    }

    /// The next such request never arrives.
    pub fn lose_request(&self, operation: Operation) {
        self.order(operation, Fault::LoseRequest);
    }

    /// The next such request is refused by the network at once.
    pub fn refuse(&self, operation: Operation) {
        self.order(operation, Fault::Refuse);
    }

    /// The next such request is applied, but its reply comes only when the gate opens.
    pub fn hold_reply(&self, operation: Operation) -> oneshot::Sender<()> {
        let (open, gate) = oneshot::channel();
        self.order(operation, Fault::HoldReply(gate));
        open
    }

    /// The next such request is rejected for what is in it, but only when the gate opens.
    pub fn hold_rejection(&self, operation: Operation) -> oneshot::Sender<()> {
        let (open, gate) = oneshot::channel();
        self.order(operation, Fault::HoldRejection(gate));
        open
    }

    /// The next such request arrives only when it is delivered; its reply is lost.
    pub fn hold_request(&self, operation: Operation) -> HeldRequest {
        let (deliver, gate) = oneshot::channel();
        let (done, delivered) = oneshot::channel();
        self.order(operation, Fault::HoldRequest { deliver: gate, delivered: done });
        HeldRequest { deliver, delivered }
    }

    /// From now on nothing arrives and nothing comes back.
    pub fn cut(&self) {
        self.state.lock().cut = true;
    }

    /// The network works again.
    pub fn heal(&self) {
        self.state.lock().cut = false;
    }

    /// The store takes batches of this size, this many at once.
    pub fn limit(&self, batch: usize, in_flight: usize) {
        self.state.lock().limits = Some(Limits::new(batch, in_flight));
    }

    /// From now on the store refuses every request with more than one item.
    pub fn fail_batches(&self) {
        self.state.lock().batches_fail = true;
    }

    /// How many requests of this kind were sent.
    pub fn sent(&self, operation: Operation) -> usize {
        self.state.lock().sent.get(&operation).copied().unwrap_or(0)
    }

    /// How many requests of this kind were answered by the store.
    pub fn answered(&self, operation: Operation) -> usize {
        self.state.lock().answered.get(&operation).copied().unwrap_or(0)
    }

    /// The most requests that were under way at once. One whose answer the case itself
    /// holds back, and a wait for a lock, do not count.
    pub fn most_under_way(&self) -> usize {
        self.state.lock().most_under_way
    }

    /// Whether a client still waits for an answer that it gets, or gives up waiting for,
    /// without the case doing anything.
    pub(crate) fn is_busy(&self) -> bool {
        self.state.lock().under_way > 0
    }

    /// The most items that travelled together.
    pub fn largest_batch(&self) -> usize {
        self.state.lock().largest_batch
    }

    /// Whether two items of one request named the same lock.
    pub fn saw_same_name_in_a_batch(&self) -> bool {
        self.state.lock().same_name_in_a_batch
    }

    fn order(&self, operation: Operation, fault: Fault) {
        self.state.lock().orders.entry(operation).or_default().push(fault);
    }

    fn next_fault(&self, operation: Operation, names: &[&Name]) -> Option<Fault> {
        let mut state = self.state.lock();
        *state.sent.entry(operation).or_default() += 1;
        state.largest_batch = state.largest_batch.max(names.len());
        let distinct: HashSet<_> = names.iter().collect();
        state.same_name_in_a_batch |= distinct.len() < names.len();
        if state.cut {
            return Some(Fault::LoseRequest);
        }
        if state.batches_fail && names.len() > 1 {
            return Some(Fault::BadBatch);
        }
        let orders = state.orders.get_mut(&operation)?;
        if orders.is_empty() { None } else { Some(orders.remove(0)) }
    }

    fn carry<T: Send + 'static>(
        self: Arc<Self>,
        operation: Operation,
        names: &[&Name],
        send: impl FnOnce(Arc<dyn Backend>) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let fault = self.next_fault(operation, names);
        let store = self.store.clone();
        let held_back = matches!(
            fault,
            Some(Fault::HoldReply(_) | Fault::HoldRejection(_) | Fault::HoldRequest { .. })
        );
        let under_way = !held_back && operation != Operation::Wait;
        let under_way = under_way.then(|| UnderWay::new(self.clone()));
        Box::pin(async move {
            let _under_way = under_way;
            match fault {
                None => {
                    let reply = send(store).await;
                    *self.state.lock().answered.entry(operation).or_default() += 1;
                    if self.state.lock().cut {
                        return std::future::pending().await;
                    }
                    reply
                }
                Some(Fault::BadBatch) => {
                    Err(Error::new(ErrorKind::Invalid, "one of them is unknown"))
                }
                Some(Fault::Refuse) => {
                    Err(Error::new(ErrorKind::Unreachable, "refused").not_applied())
                }
                Some(Fault::LoseRequest) => std::future::pending().await,
                Some(Fault::SwallowReply) => {
                    let _ = send(store).await;
                    std::future::pending().await
                }
                Some(Fault::HoldReply(gate)) => {
                    let reply = send(store).await;
                    let _ = gate.await;
                    reply
                }
                Some(Fault::HoldRejection(gate)) => {
                    let _ = gate.await;
                    Err(Error::new(ErrorKind::Invalid, "it is unknown"))
                }
                Some(Fault::HoldRequest { deliver, delivered }) => {
                    // On its own, since the client will have given up by then.
                    tokio::spawn(async move {
                        if deliver.await.is_ok() {
                            let _ = send(store).await;
                            let _ = delivered.send(());
                        }
                    });
                    std::future::pending().await
                }
            }
        })
    }
}

impl Backend for FaultyBackend {
    fn guarantees(&self) -> &Guarantees {
        self.store.guarantees()
    }

    fn clock(&self) -> &Clock {
        self.store.clock()
    }

    fn limits(&self) -> Limits {
        self.state.lock().limits.unwrap_or_else(|| self.store.limits())
    }

    fn acquire(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let names: Vec<_> = claims.iter().map(|claim| claim.name.clone()).collect();
        let names: Vec<_> = names.iter().collect();
        self.carry(Operation::Acquire, &names, |store| store.acquire(claims))
    }

    fn acquire_all(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Verdict>> {
        let names: Vec<_> = claims.iter().map(|claim| claim.name.clone()).collect();
        let names: Vec<_> = names.iter().collect();
        self.carry(Operation::Acquire, &names, |store| store.acquire_all(claims))
    }

    fn wait(self: Arc<Self>, claim: Claim) -> Reply<Turn> {
        self.carry(Operation::Wait, &[], |store| store.wait(claim))
    }

    fn leave(self: Arc<Self>, claim: Claim) -> Reply<()> {
        self.carry(Operation::Leave, &[], |store| store.leave(claim))
    }

    fn settle(self: Arc<Self>, claims: Vec<Claim>) -> Reply<Vec<Option<Grant>>> {
        self.carry(Operation::Settle, &[], |store| store.settle(claims))
    }

    fn renew(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Renewal>> {
        let names: Vec<_> = holds.iter().map(|hold| hold.name.clone()).collect();
        let names: Vec<_> = names.iter().collect();
        self.carry(Operation::Renew, &names, |store| store.renew(holds))
    }

    fn release(self: Arc<Self>, holds: Vec<Hold>) -> Reply<Vec<Release>> {
        let names: Vec<_> = holds.iter().map(|hold| hold.name.clone()).collect();
        let names: Vec<_> = names.iter().collect();
        self.carry(Operation::Release, &names, |store| store.release(holds))
    }

    fn inspect(self: Arc<Self>, lock: LockId) -> Reply<Option<LockInfo>> {
        self.carry(Operation::Inspect, &[], |store| store.inspect(lock))
    }

    fn list(self: Arc<Self>, prefix: String) -> Reply<Vec<LockInfo>> {
        self.carry(Operation::List, &[], |store| store.list(prefix))
    }

    fn force_release(self: Arc<Self>, lock: LockId, force: Force) -> Reply<ForceRelease> {
        self.carry(Operation::ForceRelease, &[], |store| store.force_release(lock, force))
    }

    fn examine(self: Arc<Self>) -> Reply<Vec<Finding>> {
        self.carry(Operation::Examine, &[], |store| store.examine())
    }

    fn hint(self: Arc<Self>) -> Reply<Hint> {
        Box::pin(async move {
            loop {
                let hint = self.store.clone().hint().await;
                if !self.state.lock().cut {
                    return hint;
                }
            }
        })
    }

    /// Without faults: no client speaks to it yet.
    fn state(self: Arc<Self>) -> Option<Arc<dyn Records>> {
        self.store.clone().state()
    }
}
