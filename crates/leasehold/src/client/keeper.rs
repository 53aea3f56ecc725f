//! The keeper: one task that keeps all leases of a client. It renews them in
//! batches, and it fires losses at their deadlines even when the store is silent.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::{CancellationToken, DropGuard};

use super::Context;
use super::schedule::{Place, Schedule};
use crate::backend::{Hint, Hold, Proof, Renewal};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Operation, Outcome, Result};
use crate::failpoint::Point;
use crate::lease::{Next, Tenure};
use crate::observe::StallWatch;

/// The finest grain at which renewals are brought together.
const FINEST: Duration = Duration::from_millis(1);
/// The coarsest: a renewal comes at most this much early.
const COARSEST: Duration = Duration::from_millis(250);

#[derive(Debug)]
pub(crate) struct Keeper {
    shared: Arc<Shared>,
    started: AtomicBool,
    /// Ends the keeper's tasks with the client.
    _end: DropGuard,
    end: CancellationToken,
}

#[derive(Debug)]
struct Shared {
    context: Arc<Context>,
    schedule: Mutex<Schedule>,
    /// When the task wakes by itself, in nanoseconds: who schedules something earlier rings.
    wakes_at: AtomicU64,
    ring: Notify,
    /// As many renewals in flight as the store takes requests.
    in_flight: Semaphore,
}

/// A lease whose renewal is due.
type Due = (Place, Arc<Tenure>);

/// Why a lease is renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Why {
    /// It is the keeper's work.
    Kept,
    /// Its holder asked for it.
    Asked,
}

impl Keeper {
    pub(crate) fn new(context: Arc<Context>) -> Self {
        let end = CancellationToken::new();
        let in_flight = context.backend.limits().in_flight.clamp(1, 64);
        Self {
            shared: Arc::new(Shared {
                context,
                schedule: Mutex::default(),
                wakes_at: AtomicU64::new(0),
                ring: Notify::new(),
                in_flight: Semaphore::new(in_flight),
            }),
            started: AtomicBool::new(false),
            _end: end.clone().drop_guard(),
            end,
        }
    }

    /// From now on this lease is kept.
    pub(crate) fn keep(&self, tenure: Arc<Tenure>, proof: Proof) -> Place {
        self.start();
        let renew_at = brought_together(tenure.renewal_after(proof), tenure.ttl());
        let look_at = renew_at.min(tenure.deadline());
        let place = self.shared.schedule.lock().insert(tenure, renew_at, look_at);
        self.shared.wake_by(look_at);
        place
    }

    /// From now on it is not: no renewal is sent for it any more.
    pub(crate) fn let_go(&self, place: Place) {
        if !self.shared.context.failpoints.skips(Point::StopRenewing) {
            self.shared.schedule.lock().remove(place);
        }
    }

    /// Renews one lease now, for a caller that waits for the verdict.
    pub(crate) async fn renew_now(&self, place: Place, tenure: &Arc<Tenure>) -> Result<()> {
        let failure = self.shared.renew(vec![(place, tenure.clone())], Why::Asked).await;
        failure.map_or(Ok(()), Err)
    }

    fn start(&self) {
        if !self.started.swap(true, Ordering::Relaxed) {
            let runtime = &self.shared.context.runtime;
            runtime.spawn(until_end(self.end.clone(), self.shared.clone().keep_going()));
            runtime.spawn(until_end(self.end.clone(), self.shared.clone().follow_hints()));
        }
    }
}

async fn until_end(end: CancellationToken, work: impl Future<Output = ()>) {
    end.run_until_cancelled_owned(work).await;
}

impl Shared {
    async fn keep_going(self: Arc<Self>) {
        let mut alarm = match self.context.clock.alarm() {
            Ok(alarm) => alarm,
            // Leases are then still compared with the clock on every call.
            Err(error) => {
                tracing::error!(%error, "no timer: leases lapse at their TTL without renewal");
                return;
            }
        };
        loop {
            let now = self.context.clock.now();
            self.look_at_due(now);
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

    /// Fires what is over, renews what is due, schedules the rest.
    fn look_at_due(self: &Arc<Self>, now: Moment) {
        let mut renewals: Vec<Due> = Vec::new();
        let mut over = Vec::new();
        {
            let mut schedule = self.schedule.lock();
            for place in schedule.take_due(now) {
                let Some(entry) = schedule.entry(place) else { continue };
                let tenure = entry.tenure.clone();
                match tenure.due(&self.context, now, entry.renew_at) {
                    Next::Over => over.push(tenure),
                    Next::At(moment) => schedule.look_at(place, moment),
                    Next::Renew { deadline } => {
                        if let Some(entry) = schedule.get_mut(place, &tenure) {
                            entry.renew_at = Moment::NEVER;
                        }
                        schedule.look_at(place, deadline);
                        renewals.push((place, tenure));
                    }
                }
            }
        }
        drop(over);
        let batch = self.context.backend.limits().batch.max(1);
        while !renewals.is_empty() {
            let rest = renewals.split_off(batch.min(renewals.len()));
            let due = std::mem::replace(&mut renewals, rest);
            let shared = self.clone();
            self.context.runtime.spawn(async move { shared.renew(due, Why::Kept).await });
        }
    }

    /// Asks the store about these leases and tells each its verdict. The error, if
    /// there was no answer or the verdict was bad, of the last of them.
    async fn renew(&self, due: Vec<Due>, why: Why) -> Option<Error> {
        // An answer that takes longer is doubt, early enough to prove it again.
        let shortest = due.iter().map(|(_, tenure)| tenure.ttl()).min().unwrap_or_default();
        let limit = self.context.request_timeout.min(shortest / 6);
        let answers = self.ask(&due, limit).await;
        match answers {
            Ok(verdicts) => {
                let failures = due.iter().zip(verdicts).filter_map(|((place, tenure), verdict)| {
                    self.tell(*place, tenure, verdict, why).err()
                });
                failures.last()
            }
            // One bad lease may have failed them all.
            Err(error) if due.len() > 1 && is_about_one_of_them(&error) => {
                let mut last = None;
                for alone in due {
                    last = Box::pin(self.renew(vec![alone], why)).await.or(last);
                }
                last
            }
            Err(error) => {
                if self.context.failpoints.skips(Point::FallIntoDoubt) {
                    return Some(error);
                }
                for (place, tenure) in &due {
                    let again = tenure.doubted(&self.context, error.clone());
                    self.reschedule(*place, tenure, again.unwrap_or(Moment::NEVER));
                }
                Some(error)
            }
        }
    }

    async fn ask(&self, due: &[Due], limit: Duration) -> Result<Vec<Renewal>> {
        let holds: Vec<Hold> = due.iter().map(|(_, tenure)| tenure.hold()).collect();
        let only = if let [(_, tenure)] = due { Some(tenure.name()) } else { None };
        let asking = async {
            let _permit = self.in_flight.acquire().await;
            self.context.backend.clone().renew(holds).await
        };
        let verdicts = self.context.ask_within(limit, asking).await;
        match verdicts {
            Ok(verdicts) if verdicts.len() == due.len() => Ok(verdicts),
            Ok(_) => Err(Error::new(ErrorKind::Internal, "the store lost a renewal's verdict")),
            Err(error) => Err(error.during(Operation::Renew, only)),
        }
    }

    fn tell(&self, place: Place, tenure: &Arc<Tenure>, verdict: Renewal, why: Why) -> Result<()> {
        match verdict {
            // The term of a lease that is not renewed stays what it was.
            Renewal::Renewed(_) if !tenure.is_renewed() && why == Why::Kept => Ok(()),
            Renewal::Renewed(proof) => {
                tenure.proved(&self.context, proof);
                let renew_at = brought_together(tenure.renewal_after(proof), tenure.ttl());
                self.reschedule(place, tenure, renew_at);
                Ok(())
            }
            Renewal::NotYours(reason) => {
                if !self.context.failpoints.skips(Point::BelieveNotYours) {
                    tenure.lose(&self.context, reason);
                }
                Err(Error::not_held().during(Operation::Renew, Some(tenure.name())))
            }
        }
    }

    fn reschedule(&self, place: Place, tenure: &Arc<Tenure>, renew_at: Moment) {
        let look_at = renew_at.min(tenure.deadline());
        let mut schedule = self.schedule.lock();
        if let Some(entry) = schedule.get_mut(place, tenure) {
            entry.renew_at = renew_at;
            schedule.look_at(place, look_at);
            drop(schedule);
            self.wake_by(look_at);
        }
    }

    /// Renews at once what the store hints at.
    async fn follow_hints(self: Arc<Self>) {
        loop {
            let hint = match self.context.backend.clone().hint().await {
                Ok(hint) => hint,
                Err(_) => {
                    self.context.clock.sleep(COARSEST).await;
                    continue;
                }
            };
            let suspects: Vec<Due> = {
                let schedule = self.schedule.lock();
                let suspect = |tenure: &Tenure| match hint {
                    Hint::Lease(owner) => tenure.owner() == owner,
                    Hint::All => true,
                };
                let places = schedule.places();
                let suspects = places.filter(|(_, entry)| suspect(&entry.tenure));
                suspects.map(|(place, entry)| (place, entry.tenure.clone())).collect()
            };
            for due in suspects.chunks(self.context.backend.limits().batch.max(1)) {
                self.renew(due.to_vec(), Why::Kept).await;
            }
        }
    }
}

/// Whether the store refused a batch for what is in it, and not because it could not
/// be reached: asking for each alone would then only add to its troubles.
fn is_about_one_of_them(error: &Error) -> bool {
    error.outcome() == Outcome::NotApplied
        && !matches!(error.kind(), ErrorKind::Unreachable | ErrorKind::Unavailable)
}

/// Moves a renewal a little forward, so that it shares a request with its neighbours.
fn brought_together(renew_at: Moment, ttl: Duration) -> Moment {
    if renew_at == Moment::NEVER {
        return renew_at;
    }
    let grain = (ttl / 3 / 64).clamp(FINEST, COARSEST).as_nanos() as u64;
    Moment::from_nanos(renew_at.as_nanos() / grain * grain)
}
