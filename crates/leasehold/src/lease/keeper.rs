//! The keeper: one task that keeps all leases of a client. It renews them in
//! batches, and it fires losses at their deadlines even when the store is silent.

use std::sync::Arc;
#[cfg(not(all(test, shuttle)))]
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
#[cfg(all(test, shuttle))]
use shuttle::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::sync::Notify;
use tokio::task::{self, JoinHandle};

use super::renewal_limiter::RenewalLimiter;
use super::schedule::{Flight, Place, Schedule};
use super::state::{LeaseCore, Next, Question};
use crate::backend::{Hold, Proof, Renewal};
use crate::clock::{Alarm, Moment};
use crate::context::{Context, is_about_one_of_them, wrong_count};
use crate::error::{Error, ErrorKind, Operation, Result};
use crate::failpoint::Point;
use crate::loss::LossReason;
use crate::observe::StallWatch;

use abort::AbortOnDrop;

mod abort;
mod hints;

/// The finest grain at which renewals are brought together.
const FINEST: Duration = Duration::from_millis(1);
/// The coarsest: a renewal comes at most this much early.
const COARSEST: Duration = Duration::from_millis(250);

/// How many leases are looked at before they are renewed: few enough to be still in the
/// processor's cache.
const PORTION: usize = 1024;

#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    /// Both end with the client.
    keeping: JoinHandle<()>,
    following: JoinHandle<()>,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    schedule: Mutex<Schedule>,
    /// When the task wakes by itself, in nanoseconds: who schedules something earlier rings.
    wakes_at: AtomicU64,
    ring: Notify,
    /// As many renewals in flight as the store takes requests.
    limiter: RenewalLimiter,
    /// Nobody keeps leases any more.
    ended: AtomicBool,
}

/// The right to keep leases, in the hands of one task. However that ends (with its
/// runtime, by a panic), no timer is left: leases that nobody keeps are lost at once.
struct Keeping(Arc<Shared>);

impl Drop for Keeping {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::SeqCst);
        self.0.lose_all(&LossReason::Unreachable);
    }
}

/// A lease that the store is asked about.
#[derive(Debug, Clone)]
struct Due {
    place: Place,
    core: Arc<LeaseCore>,
    question: Question,
    why: Why,
}

/// Why a lease is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It was due.
    Scheduled,
    /// Its holder asked for it.
    Asked,
}

impl Keeper {
    pub(crate) fn start(context: Arc<Context>, alarm: Alarm) -> Self {
        let in_flight = context.backend.limits().in_flight.clamp(1, 64);
        let runtime = context.runtime.clone();
        let shared = Arc::new(Shared {
            context,
            schedule: Mutex::default(),
            wakes_at: AtomicU64::new(0),
            ring: Notify::new(),
            limiter: RenewalLimiter::new(in_flight),
            ended: AtomicBool::new(false),
        });
        let right = Keeping(shared.clone());
        let keeping = runtime.spawn(async move { right.0.keep_going(alarm).await });
        let following = runtime.spawn(shared.clone().follow_hints());
        Self { shared, keeping, following }
    }

    /// Whether leases are kept at all: not once the runtime has ended.
    pub(crate) fn is_running(&self) -> bool {
        !self.shared.ended.load(Ordering::SeqCst)
    }

    /// From now on this lease is kept.
    pub(crate) fn keep(&self, core: Arc<LeaseCore>, proof: Proof) -> Place {
        let renew_at = aligned(core.renewal_after(proof), core.ttl());
        let Renewing { renew_at, look_at } = Renewing::at(renew_at, core.deadline());
        let place = self.shared.schedule.lock().insert(core.clone(), renew_at, look_at);
        self.shared.wake_by(look_at);
        if !self.is_running() {
            // It ended just now, and may not have seen this one.
            core.lose(&self.shared.context, LossReason::Unreachable);
        }
        place
    }

    /// From now on it is not: no renewal is sent for it any more. May be said twice.
    pub(crate) fn let_go(&self, place: Place, core: &Arc<LeaseCore>) {
        if !self.shared.context.failpoints.skips(Point::StopRenewing) {
            self.shared.schedule.lock().remove(place, core);
        }
    }

    /// Renews one lease now, for a caller that waits for the verdict.
    pub(crate) async fn renew_now(&self, place: Place, core: &Arc<LeaseCore>) -> Result<()> {
        let now = self.shared.context.clock.now();
        let due = self.shared.question(place, core.clone(), Why::Asked, now);
        self.shared.renew(vec![due], None).await.map_or(Ok(()), Err)
    }

    /// The store said that it is gone, and all leases with it.
    pub(crate) fn lose_all_with_the_store(&self) {
        self.shared.lose_all(&LossReason::StoreGone);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.keeping.abort();
        self.following.abort();
    }
}

impl Shared {
    async fn keep_going(self: &Arc<Self>, mut alarm: Alarm) {
        loop {
            let now = self.context.clock.now();
            if self.look_at_due(now) == PORTION {
                task::yield_now().await;
                continue;
            }
            let (next, shortest_ttl) = self.next_wake(now);
            self.wakes_at.store(next.as_nanos(), Ordering::SeqCst);
            // Scheduled between the two lines above: would have missed the ring.
            if self.schedule.lock().next() < next {
                continue;
            }
            tokio::select! {
                () = alarm.until(next) => {
                    self.context.stalls.woken(next, self.context.clock.now(), shortest_ttl);
                }
                () = self.ring.notified() => {}
            }
        }
    }

    /// When something is due; while there are leases, soon enough to notice a stall.
    fn next_wake(&self, now: Moment) -> (Moment, Option<Duration>) {
        let schedule = self.schedule.lock();
        let shortest_ttl = schedule.shortest_ttl();
        let tick = shortest_ttl.map_or(Moment::NEVER, |_| now + StallWatch::TICK);
        // What is overdue was scheduled just now: that is no stall.
        (schedule.next().min(tick).max(now), shortest_ttl)
    }

    fn wake_by(&self, moment: Moment) {
        if moment.as_nanos() < self.wakes_at.load(Ordering::SeqCst) {
            self.ring.notify_one();
        }
    }

    /// Fires what is over, renews what is due, schedules the rest; how many were due. In
    /// portions, so that a million leases neither hold the lock for long nor need room at once.
    fn look_at_due(self: &Arc<Self>, now: Moment) -> usize {
        let mut renewals = Vec::new();
        let mut losses = Vec::new();
        let due = {
            let mut schedule = self.schedule.lock();
            let due = schedule.take_due(now, PORTION);
            for &place in &due {
                let Some(entry) = schedule.entry_mut(place) else { continue };
                match entry.core.due(&self.context, now, entry.renew_at) {
                    Next::Over(loss) => losses.push((entry.core.clone(), loss)),
                    Next::At(moment) => schedule.look_at(place, moment),
                    Next::Renew(question) => {
                        // The answer, or the lack of one, arranges what comes next.
                        entry.renew_at = Moment::NEVER;
                        let (core, why) = (entry.core.clone(), Why::Scheduled);
                        renewals.push(Due { place, core, question, why });
                    }
                }
            }
            due.len()
        };
        for (core, loss) in losses {
            core.announce(&self.context, loss);
        }
        for due in self.batches(renewals) {
            let places = due.iter().map(|due| due.place).collect();
            let flight = self.schedule.lock().depart(places, first_deadline(&due));
            let shared = self.clone();
            self.context.runtime.spawn(async move { shared.renew(due, Some(flight)).await });
        }
        due
    }

    fn question(&self, place: Place, core: Arc<LeaseCore>, why: Why, now: Moment) -> Due {
        let question = core.question(&self.context, now);
        Due { place, core, question, why }
    }

    /// What may travel together: as much as the store takes, and only leases that can
    /// wait about as long for the answer.
    fn batches(&self, renewals: Vec<Due>) -> Vec<Vec<Due>> {
        let most = self.context.backend.limits().batch.max(1);
        // Those of one moment are of few kinds: mostly of one.
        let mut by_limit: Vec<(u32, Vec<Due>)> = Vec::new();
        let mut batches = Vec::new();
        for due in renewals {
            let alike = due.question.limit.as_micros().max(1).ilog2();
            let kind = by_limit.iter().position(|(limit, _)| *limit == alike);
            let kind = kind.unwrap_or_else(|| {
                by_limit.push((alike, Vec::new()));
                by_limit.len() - 1
            });
            let batch = &mut by_limit[kind].1;
            batch.push(due);
            if batch.len() == most {
                batches.push(std::mem::take(batch));
            }
        }
        let rest = by_limit.into_iter().map(|(_, batch)| batch);
        batches.extend(rest.filter(|batch| !batch.is_empty()));
        batches
    }

    /// Asks the store about these leases and tells each its verdict. The error, if
    /// there was no answer or the verdict was bad, of the last of them.
    async fn renew(self: &Arc<Self>, mut due: Vec<Due>, flight: Option<Flight>) -> Option<Error> {
        let failure = match self.ask(&mut due).await {
            Err(error) if due.len() > 1 && is_about_one_of_them(&error) => {
                for alone in due {
                    let shared = self.clone();
                    self.context.runtime.spawn(async move {
                        let mut alone = vec![alone];
                        let answer = shared.ask(&mut alone).await;
                        shared.take_answer(&alone, answer)
                    });
                }
                Some(error)
            }
            answer => self.take_answer(&due, answer),
        };
        if let Some(flight) = flight {
            self.schedule.lock().land(flight);
        }
        failure
    }

    fn take_answer(&self, due: &[Due], answer: Result<Vec<Renewal>>) -> Option<Error> {
        match answer {
            Ok(verdicts) => {
                let now = self.context.clock.now();
                let mut failure = None;
                let told = due.iter().zip(verdicts).filter_map(|(due, verdict)| {
                    let told = self.take_verdict(due, verdict, now);
                    told.map_err(|error| failure = Some(error)).ok().map(|next| (due, next))
                });
                self.reschedule(told.collect());
                failure
            }
            Err(error) if error.says_gone() => {
                self.lose_all(&LossReason::StoreGone);
                Some(error)
            }
            Err(error) => {
                if !self.context.failpoints.skips(Point::FallIntoDoubt) {
                    let doubted = due.iter().filter_map(|due| {
                        let again = due.core.doubted(&self.context, due.question, error.clone());
                        again.map(|again| (due, Renewing::at(again, due.core.deadline())))
                    });
                    self.reschedule(doubted.collect());
                }
                Some(error)
            }
        }
    }

    /// Asks the store about those of these leases that are not over when it is their turn.
    async fn ask(&self, due: &mut Vec<Due>) -> Result<Vec<Renewal>> {
        let limit =
            |due: &[Due]| due.iter().map(|due| due.question.limit).min().unwrap_or_default();
        let permit = self.limiter.enter(first_deadline(due), limit(due)).await;
        let permit = permit.map_err(|error| error.during(Operation::Renew, None))?;
        if permit.waited {
            let now = self.context.clock.now();
            due.retain(|due| self.lasts(&due.core, now));
            if due.is_empty() {
                return Ok(Vec::new());
            }
        }
        let holds: Vec<Hold> = due.iter().map(|due| due.core.hold()).collect();
        let limit = limit(due);
        // In a task of its own: a store that panics is doubt, not the end of renewal
        // (python-redis-lock).
        let backend = self.context.backend.clone();
        let task =
            AbortOnDrop(self.context.runtime.spawn(async move { backend.renew(holds).await }));
        let asking = async {
            let panicked = |_| Error::new(ErrorKind::Internal, "the store's code panicked");
            task.await.unwrap_or_else(|error| Err(panicked(error)))
        };
        let only = if let [due] = due.as_slice() { Some(due.core.name()) } else { None };
        let answer = self.context.ask_within(limit, asking).await;
        match &answer {
            Err(error) if !is_about_one_of_them(error) => self.limiter.silent(error),
            _ => self.limiter.heard(),
        }
        match answer {
            Ok(verdicts) if verdicts.len() == due.len() => Ok(verdicts),
            Ok(_) => Err(wrong_count(due.len())),
            Err(error) => Err(error.during(Operation::Renew, only)),
        }
    }

    /// Whether there is something to renew: at the store, a lease that is over on our side
    /// would keep others out for one more TTL.
    fn lasts(&self, core: &LeaseCore, now: Moment) -> bool {
        !core.is_over(now) || self.context.failpoints.skips(Point::StopRenewing)
    }

    /// Takes the verdict on one lease; when to renew it next.
    fn take_verdict(&self, due: &Due, verdict: Renewal, now: Moment) -> Result<Renewing> {
        let core = &due.core;
        match verdict {
            Renewal::Renewed(proof) => {
                // The term of a lease that is not renewed stays what it was.
                let extends = core.is_renewed() || due.why == Why::Asked;
                let deadline = core.proved(&self.context, proof, extends, now);
                let renew_at = aligned(core.renewal_after(proof), core.ttl());
                // A proof may be old already (a session's): asking at once would get the
                // same one again and again.
                Ok(Renewing::at(renew_at.max(now + now.until(deadline) / 8), deadline))
            }
            Renewal::NotYours(reason) => {
                if !self.context.failpoints.skips(Point::BelieveNotYours) {
                    core.lose(&self.context, reason);
                }
                Err(Error::not_held().during(Operation::Renew, Some(core.name())))
            }
        }
    }

    fn lose_all(&self, reason: &LossReason) {
        // Outside of the lock: wakers and readers may look at the keeper.
        let kept: Vec<_> =
            self.schedule.lock().places().map(|(_, entry)| entry.core.clone()).collect();
        for core in kept {
            core.lose(&self.context, reason.clone());
        }
    }

    fn reschedule(&self, renewals: Vec<(&Due, Renewing)>) {
        let mut earliest = Moment::NEVER;
        let mut schedule = self.schedule.lock();
        for (due, Renewing { renew_at, look_at }) in renewals {
            if let Some(entry) = schedule.get_mut(due.place, &due.core) {
                entry.renew_at = renew_at;
                schedule.look_at(due.place, look_at);
                earliest = earliest.min(look_at);
            }
        }
        drop(schedule);
        self.wake_by(earliest);
    }
}

/// When the first of these leases is over.
fn first_deadline(due: &[Due]) -> Moment {
    due.iter().map(|due| due.question.deadline).min().unwrap_or(Moment::NEVER)
}

/// When a lease is renewed next, and when it is looked at: then, or when it is over.
struct Renewing {
    renew_at: Moment,
    look_at: Moment,
}

impl Renewing {
    fn at(renew_at: Moment, deadline: Moment) -> Self {
        Self { renew_at, look_at: renew_at.min(deadline) }
    }
}

/// Moves a renewal a little forward, so that it shares a request with its neighbours.
fn aligned(renew_at: Moment, ttl: Duration) -> Moment {
    if renew_at == Moment::NEVER {
        return renew_at;
    }
    let grain = (ttl / (3 * 64)).clamp(FINEST, COARSEST).as_nanos() as u64;
    Moment::from_nanos(renew_at.as_nanos() / grain * grain)
}
