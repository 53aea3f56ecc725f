//! The sessions of one client: TTLs near each other share one. Each is opened when it is first
//! needed, and closed when no lease and no waiter has used it for a while: servers allow a host
//! only so many connections (`maxClientCnxns`, usually 60).

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::OnceCell;
use zookeeper_client::{AddWatchMode, EventType, SessionState};

use super::ledger::Shared;
use super::payload;
use super::session::{A_MOMENT, Session, connect, slack, timeout_for};
use super::url::Target;
use crate::backend::Hint;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// Before the servers are asked again how long their tick is.
const ASKS_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a session is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(10);
/// `tickTime` of a server whose configuration does not say.
const USUAL_TICK: Duration = Duration::from_secs(2);

type Slot = Arc<tokio::sync::Mutex<Option<Arc<Session>>>>;

#[derive(Debug)]
pub(super) struct Sessions {
    opener: Arc<Opener>,
    /// By time-out, in milliseconds.
    slots: Mutex<HashMap<u64, Slot>>,
}

/// What opens a session, in a task of its own.
#[derive(Debug)]
struct Opener {
    target: Arc<Target>,
    shared: Arc<Shared>,
    /// The path of what rings when a lock is released by force.
    bell: String,
    /// Half of the shortest time-out that the servers grant, once somebody had to ask.
    tick: OnceCell<Duration>,
}

impl Sessions {
    pub(super) fn new(target: Arc<Target>, shared: Arc<Shared>, bell: String) -> Self {
        let opener = Opener { target, shared, bell, tick: OnceCell::new() };
        Self { opener: Arc::new(opener), slots: Mutex::default() }
    }

    /// The session for leases of this TTL, connected.
    pub(super) async fn of(&self, ttl: Duration) -> Result<Arc<Session>> {
        let session = self.any(ttl).await?;
        session.wait_connected(A_MOMENT).await?;
        Ok(session)
    }

    /// A session to read with: one that is connected, or else the one that was opened first.
    pub(super) async fn reader(&self) -> Result<Arc<Session>> {
        match self.open_ones().into_iter().find(|session| session.is_connected()) {
            Some(session) => Ok(session),
            None => self.of(self.opener.target.session).await,
        }
    }

    /// How long the servers' tick is taken to be, for sessions with this time-out.
    pub(super) async fn tick(&self, timeout: Duration) -> Duration {
        // Without an answer: as long as it can be, for this session to be granted.
        self.opener.learn_tick(timeout).await.unwrap_or(timeout / 2)
    }

    /// Those that are open.
    pub(super) fn open_ones(&self) -> Vec<Arc<Session>> {
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        slots.iter().filter_map(|slot| slot.try_lock().ok()?.clone()).collect()
    }

    /// Lets go of sessions that are over, and closes those that nobody has used for a while,
    /// except the one that is opened at once, which reads. Whether others are left.
    pub(super) fn let_go(&self, now: Moment) -> bool {
        let kept = timeout_for(self.opener.target.session).ok();
        let (mut left, mut closed) = (false, Vec::new());
        for (millis, slot) in self.slots.lock().iter() {
            // One that is being opened is in use.
            let Ok(mut place) = slot.try_lock() else {
                left = true;
                continue;
            };
            let Some(session) = &*place else { continue };
            let mut used = session.used.lock();
            // It is handed out from this slot only: nobody can take it now.
            if Arc::strong_count(session) > 1 || Some(*millis) == kept {
                *used = now;
            }
            let idle = *used + IDLE <= now;
            drop(used);
            if idle || session.is_over() {
                closed.push(place.take());
            } else {
                left |= Some(*millis) != kept;
            }
        }
        // Here: a session ends when it is dropped.
        drop(closed);
        left
    }

    async fn any(&self, ttl: Duration) -> Result<Arc<Session>> {
        let millis = timeout_for(ttl)?;
        let slot = self.slots.lock().entry(millis).or_default().clone();
        let mut place = slot.lock_owned().await;
        if let Some(session) = place.as_ref().filter(|session| !session.is_over()) {
            *session.used.lock() = self.opener.shared.clock.now();
            return Ok(session.clone());
        }
        // In a task of its own: the caller may give up, but the next one finds it open.
        let opener = self.opener.clone();
        let opening = tokio::spawn(async move {
            let session = opener.clone().open(Duration::from_millis(millis)).await?;
            // Opening may have taken longer than an idle session is kept.
            *session.used.lock() = opener.shared.clock.now();
            *place = Some(session.clone());
            // The janitor closes it when nobody uses it.
            opener.shared.chores.notify_one();
            Ok(session)
        });
        opening.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "opening a session was interrupted").not_applied())
        })
    }
}

impl Opener {
    async fn open(self: Arc<Self>, timeout: Duration) -> Result<Arc<Session>> {
        let asked = self.shared.clock.now();
        let client = connect(&self.target, timeout).await?;
        let granted = client.session_timeout();
        // A server that is alone has no configuration of an ensemble; a client that may not
        // read it takes the server for one of many.
        let alone = client.get_config().await.is_ok_and(|(config, _)| config.is_empty());
        let tick = if alone { Some(Duration::ZERO) } else { self.learn_tick(granted).await };
        let allowed = match alone {
            true => Duration::ZERO,
            // The driver pings by the time-out that was asked for, whatever was granted. A tick is
            // as long as it can be, for this session to be granted.
            false => slack(timeout, tick.unwrap_or(granted / 2)),
        };
        let clock = self.shared.clock.clone();
        let session = Arc::new(Session::new(client, timeout, allowed, clock, asked));
        let weak = Arc::downgrade(&session);
        let mut tasks = session.tasks.lock();
        if tick.is_none() {
            tasks.spawn(self.clone().learn_later(weak.clone(), granted));
        }
        tasks.spawn(follow_state(weak.clone(), self.shared.clone()));
        tasks.spawn(listen_to_bell(weak, self.shared.clone(), self.bell.clone()));
        drop(tasks);
        Ok(session)
    }

    /// How long the servers' `tickTime` may be, if sessions with this time-out are granted;
    /// `None` if the servers had to be asked and gave no answer. A follower tells the leader of
    /// its clients every half tick, so that is how much older than a write the leader's
    /// knowledge of its session may be.
    ///
    /// The servers do not tell every client (their four-letter words may be off). But the shortest
    /// session that they grant lasts for two ticks, unless their configuration says otherwise;
    /// then the URL has to.
    async fn learn_tick(&self, timeout: Duration) -> Option<Duration> {
        if self.target.tick.is_some() {
            return self.target.tick;
        }
        if timeout <= 2 * USUAL_TICK {
            return Some(timeout / 2);
        }
        let asking = async || {
            let client = connect(&self.target, 2 * USUAL_TICK).await?;
            Ok::<_, Error>(client.session_timeout() / 2)
        };
        self.tick.get_or_try_init(asking).await.ok().map(|tick| USUAL_TICK.max(*tick))
    }

    /// The servers did not say how long their tick is when this session was opened: asks again.
    async fn learn_later(self: Arc<Self>, session: Weak<Session>, granted: Duration) {
        let tick = loop {
            tokio::time::sleep(ASKS_AGAIN_AFTER).await;
            if let Some(tick) = self.learn_tick(granted).await {
                break tick;
            }
        };
        if let Some(session) = session.upgrade() {
            *session.slack.lock() = slack(session.timeout, tick);
        }
    }
}

/// Tells the client's keeper as soon as the session is in doubt, or over.
async fn follow_state(session: Weak<Session>, shared: Arc<Shared>) {
    let Some(mut states) = session.upgrade().map(|session| session.client.state_watcher()) else {
        return;
    };
    let mut seen = session.upgrade().map(|session| session.client.state());
    loop {
        // What changed before we looked counts as well.
        let state = match seen.take().filter(|state| *state != SessionState::SyncConnected) {
            Some(state) => state,
            None => states.changed().await,
        };
        let Some(session) = session.upgrade() else { return };
        match state {
            SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                // What was sent on the old connection may still arrive.
                session.expect_strangers();
            }
            SessionState::Disconnected => {}
            _ => tracing::debug!(session = %session.client.session_id(), %state, "a session ended"),
        }
        shared.hints.announce(Hint::All);
        shared.chores.notify_one();
        if state.is_terminated() {
            return;
        }
    }
}

/// Hears of force-releases: their record is written with the bell.
async fn listen_to_bell(session: Weak<Session>, shared: Arc<Shared>, bell: String) {
    let watching = async {
        let session = session.upgrade()?;
        session.client.watch(&bell, AddWatchMode::Persistent).await.ok()
    };
    let Some(mut watcher) = watching.await else {
        // The next renewal tells instead.
        return;
    };
    loop {
        let event = watcher.changed().await;
        if event.event_type == EventType::Session {
            if event.session_state.is_terminated() {
                return;
            }
            continue;
        }
        let Some(session) = session.upgrade() else { return };
        let Ok((data, _)) = session.client.get_data(&bell).await else { continue };
        let Some((name, forced)) = payload::read_record(&data) else { continue };
        if let Some(owner) = shared.ledger.lock().owner_of(&name, forced.token) {
            shared.hints.announce(Hint::Lease(owner));
        }
    }
}
