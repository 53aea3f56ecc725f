//! The sessions of one client: TTLs near each other share one. Each is opened when it is first
//! needed, and closed when no lease and no waiter has used it for a while: servers allow a host
//! only so many connections (`maxClientCnxns`, usually 60).

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::timeout;
use zookeeper_client::{AddWatchMode, Client, EventType, SessionState, TlsOptions};

use super::books::Books;
use super::card;
use super::error::{of_connecting, of_request};
use super::path::Paths;
use super::session::{Session, silence, slack};
use super::tick::Tick;
use super::url::{Target, Tls};
use crate::backend::Hint;
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// How long opening a session may take, all servers together.
const OPENING: Duration = Duration::from_secs(5);
/// How long a request waits for a connection that just broke.
const A_MOMENT: Duration = Duration::from_millis(500);
/// The longest time-out that the protocol can carry.
const LONGEST: Duration = Duration::from_millis(i32::MAX as u64);

/// Before the servers are asked again how long their tick is.
const ASKS_AGAIN_AFTER: Duration = Duration::from_secs(5);
/// How long a session is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(10);
/// The first digits of the time-outs that sessions have, in milliseconds. A TTL in between has a
/// session that lasts longer, by a quarter at most: so much later a crashed client's locks are free.
const STEPS: [u64; 13] = [100, 125, 150, 180, 200, 250, 300, 350, 400, 500, 600, 700, 800];

type Slot = Arc<tokio::sync::Mutex<Option<Arc<Session>>>>;

#[derive(Debug)]
pub(super) struct Sessions {
    target: Arc<Target>,
    books: Arc<Books>,
    tick: Arc<Tick>,
    /// By time-out, in milliseconds.
    slots: Mutex<HashMap<u64, Slot>>,
}

impl Sessions {
    pub(super) fn new(target: Arc<Target>, books: Arc<Books>) -> Self {
        Self { target, books, tick: Arc::default(), slots: Mutex::default() }
    }

    /// The session for leases of this TTL; refused if the server does not keep sessions for
    /// that long, or keeps them for much longer: nobody would notice that a lease ends sooner or
    /// later than agreed.
    pub(super) async fn of(&self, ttl: Duration) -> Result<Arc<Session>> {
        let session = self.any(ttl).await?;
        session.wait_connected(A_MOMENT).await?;
        let (asked, granted) = (session.timeout, session.client.session_timeout());
        if granted < ttl || granted > asked {
            let message = format!(
                "this ZooKeeper keeps sessions for {granted:?} when {asked:?} are asked for, so \
                 a lease would not last for its TTL of {ttl:?}; choose a TTL that it allows (see \
                 `leasehold doctor`), or set its minSessionTimeout and maxSessionTimeout"
            );
            return Err(Error::new(ErrorKind::Refused, message));
        }
        Ok(session)
    }

    /// A session to read with: one that is connected, or else the one that was opened first.
    pub(super) async fn reader(&self) -> Result<Arc<Session>> {
        let connected = self.open_ones().into_iter().find(|session| session.is_connected());
        if let Some(session) = connected {
            return Ok(session);
        }
        let session = self.any(self.target.session).await?;
        session.wait_connected(A_MOMENT).await?;
        Ok(session)
    }

    /// How long the servers' tick is taken to be, for sessions with this time-out.
    pub(super) async fn tick(&self, timeout: Duration) -> Duration {
        self.tick.at_most(&self.target, timeout).await
    }

    /// Those that are open.
    pub(super) fn open_ones(&self) -> Vec<Arc<Session>> {
        let slots: Vec<_> = self.slots.lock().values().cloned().collect();
        slots.iter().filter_map(|slot| slot.try_lock().ok()?.clone()).collect()
    }

    /// Lets go of sessions that are over.
    pub(super) fn forget_ended(&self) {
        self.slots.lock().retain(|_, slot| match slot.try_lock() {
            Ok(slot) => slot.as_ref().is_none_or(|session| !session.is_over()),
            Err(_) => true,
        });
    }

    /// Closes sessions that nobody has used for a while, except the one that is opened at once,
    /// which reads. Whether others are left.
    pub(super) fn close_idle(&self, now: Moment) -> bool {
        let kept = timeout_for(self.target.session).ok();
        let (mut left, mut closed) = (false, Vec::new());
        for (millis, slot) in self.slots.lock().iter() {
            // One that is being opened is in use.
            let Ok(mut place) = slot.try_lock() else {
                left = true;
                continue;
            };
            let Some(session) = place.as_ref().filter(|_| Some(*millis) != kept) else { continue };
            // Whoever gets it, gets it from this slot: nobody can now.
            if Arc::strong_count(session) > 1 {
                session.used(now);
            }
            if session.last_used() + IDLE > now {
                left = true;
            } else {
                closed.push(place.take());
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
            session.used(self.books.clock.now());
            return Ok(session.clone());
        }
        // In a task of its own: whoever asks may give up, but the next one finds it open.
        let (target, books, tick) = (self.target.clone(), self.books.clone(), self.tick.clone());
        let opening = tokio::spawn(async move {
            let timeout = Duration::from_millis(millis);
            let session = open(&target, books.clone(), &tick, timeout).await?;
            // Opening may have taken longer than an idle session is kept.
            session.used(books.clock.now());
            *place = Some(session.clone());
            // The janitor closes it when nobody uses it.
            books.ring.notify_one();
            Ok(session)
        });
        opening.await.unwrap_or_else(|_| {
            Err(Error::new(ErrorKind::Internal, "opening a session was interrupted"))
        })
    }
}

/// The time-out of the session for this TTL, in milliseconds.
fn timeout_for(ttl: Duration) -> Result<u64> {
    if ttl > LONGEST {
        let message = format!("ZooKeeper cannot keep a session for {ttl:?}; use a shorter TTL");
        return Err(Error::invalid(message));
    }
    let millis = ttl.as_nanos().div_ceil(1_000_000) as u64;
    if millis < STEPS[0] {
        return Ok(millis);
    }
    let mut unit = 1;
    while millis > 1_000 * unit {
        unit *= 10;
    }
    let step = STEPS.iter().map(|digits| digits * unit).find(|step| *step >= millis);
    Ok(step.unwrap_or(1_000 * unit).min(LONGEST.as_millis() as u64))
}

/// Opens a session, without what follows it.
pub(super) async fn connect(target: &Target, asked: Duration) -> Result<Client> {
    let mut connector = Client::connector()
        .with_session_timeout(asked)
        .with_connection_timeout(silence(asked))
        .with_fail_eagerly();
    if let Some(digest) = &target.digest {
        connector = connector.with_auth("digest", digest.as_bytes());
    }
    let cluster = target.cluster();
    let connecting = async {
        match &target.tls {
            Some(tls) => connector.with_tls(options(tls)?).secure_connect(&cluster).await,
            None => connector.connect(&cluster).await,
        }
        .map_err(of_connecting)
    };
    timeout(OPENING, connecting).await.unwrap_or_else(|_| {
        let message = format!("no ZooKeeper server opened a session within {OPENING:?}");
        Err(Error::new(ErrorKind::Unreachable, message))
    })
}

async fn open(
    target: &Arc<Target>,
    books: Arc<Books>,
    tick: &Arc<Tick>,
    timeout: Duration,
) -> Result<Arc<Session>> {
    let asked = books.clock.now();
    let client = connect(target, timeout).await?;
    // A server that is alone has no configuration of an ensemble; who may not read it is
    // taken for one of many.
    let alone = client.get_config().await.is_ok_and(|(config, _)| config.is_empty());
    let granted = client.session_timeout();
    let learned = match alone {
        true => None,
        false => tick.learn(target, granted).await,
    };
    // The driver pings by the time-out that was asked for, whatever was granted.
    let allowed = match alone {
        true => Duration::ZERO,
        // As long as a tick can be, for this session to be granted.
        false => slack(timeout, learned.unwrap_or(granted / 2)),
    };
    let session = Session::new(client, timeout, allowed, books.clock.clone(), asked);
    let session = Arc::new(session);
    if !alone && learned.is_none() {
        let (target, tick) = (target.clone(), tick.clone());
        let learning = learn_later(Arc::downgrade(&session), target, tick, granted);
        session.adopt(tokio::spawn(learning).abort_handle());
    }
    let watched = follow_state(Arc::downgrade(&session), books.clone());
    session.adopt(tokio::spawn(watched).abort_handle());
    let paths = Paths::below(&target.root);
    let heard = listen_to_bell(Arc::downgrade(&session), books, paths);
    session.adopt(tokio::spawn(heard).abort_handle());
    Ok(session)
}

/// The servers did not say how long their tick is when this session was opened: asks again.
async fn learn_later(
    session: Weak<Session>,
    target: Arc<Target>,
    tick: Arc<Tick>,
    granted: Duration,
) {
    loop {
        tokio::time::sleep(ASKS_AGAIN_AFTER).await;
        if session.strong_count() == 0 {
            return;
        }
        if let Some(tick) = tick.learn(&target, granted).await {
            if let Some(session) = session.upgrade() {
                session.correct_slack(slack(session.timeout, tick));
            }
            return;
        }
    }
}

/// Tells the client's keeper as soon as the session is in doubt, or over.
async fn follow_state(session: Weak<Session>, books: Arc<Books>) {
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
        books.hints.announce(Hint::All);
        books.ring.notify_one();
        if state.is_terminated() {
            return;
        }
    }
}

/// Hears of force-releases: their record is written with the bell.
async fn listen_to_bell(session: Weak<Session>, books: Arc<Books>, paths: Paths) {
    let bell = paths.bell();
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
        if let Some((name, forced)) = card::read_record(&data)
            && let Some(owner) = books.table.holder_with(&name, forced.token)
        {
            books.hints.announce(Hint::Lease(owner));
        }
    }
}

fn options(tls: &Tls) -> Result<TlsOptions> {
    // The driver brings a second provider of cryptography, and then rustls asks which one is
    // meant. If the program has chosen already, it stays with that.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut options = TlsOptions::new().with_pem_ca(&read(&tls.ca)?).map_err(of_request)?;
    if let Some((cert, key)) = &tls.identity {
        options = options.with_pem_identity(&read(cert)?, &read(key)?).map_err(of_request)?;
    }
    Ok(options)
}

fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).map_err(|error| {
        Error::invalid(format!("cannot read {}: {error}", path.display())).caused_by(error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lasts_at_least_as_long_as_its_leases_and_not_much_longer() {
        let timeout = |millis| timeout_for(Duration::from_millis(millis)).unwrap();
        for usual in [100, 500, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 30_000, 60_000] {
            assert_eq!(timeout(usual), usual);
        }
        for millis in (100..2_000).chain((2_000..300_000).step_by(7)) {
            let lasts = timeout(millis);
            assert!(lasts >= millis && 4 * lasts <= 5 * millis + 4, "{lasts} for {millis}");
        }
        let longest = LONGEST.as_millis() as u64;
        assert_eq!((timeout(7), timeout(longest)), (7, longest));
        assert_eq!(timeout_for(Duration::from_nanos(29_999_000_001)).unwrap(), 30_000);
        assert!(timeout_for(LONGEST + Duration::from_millis(1)).is_err());
    }
}
