//! Waiting in the queue: until the server tells of a grant, the holder's time is up, or a
//! heartbeat is due. The table is the truth; all of these only say when to look.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::LeaseStore;
use super::statements::{self, Column, element, grants, nanos};
use super::waiters::Next;
use crate::backend::kit::time;
use crate::backend::{Claim, Grant, Turn};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};

/// How often a waiter says that it is still there; it counts as alive for three seconds.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How often to look where nothing can be listened to.
const POLL: Duration = Duration::from_millis(100);

/// Between a lease's end and the next look: clocks tick differently.
const GRACE: Duration = Duration::from_millis(2);

/// How many heartbeats share a request.
const MOST_AT_ONCE: usize = 256;

/// Waits until the queued claim is granted. Dropping it leaves the place in the queue.
pub(super) async fn wait(store: Arc<LeaseStore>, claim: Claim) -> Result<Turn> {
    store.waiters.register([claim.owner], store.clock.now());
    store.listener.start().await;
    let patience = HEARTBEAT.min(claim.ttl / 3);
    let turn = loop {
        let every = if store.waiters.is_listening() { patience } else { patience.min(POLL) };
        match store.waiters.next(claim.owner, store.clock.now(), every) {
            Next::Granted(grant) => break Turn::Granted(grant),
            Next::Gone => break Turn::TryAgain,
            Next::Sleep(bell, until) => {
                tokio::select! {
                    biased;
                    () = bell.notified() => {}
                    () = store.clock.sleep_until(until + GRACE) => {}
                }
            }
            Next::Look => {
                if let Some(turn) = look(&store, &claim).await? {
                    break turn;
                }
            }
        }
    };
    store.waiters.forget([claim.owner]);
    Ok(turn)
}

/// Gives up the place in the queue, or the grant that just came.
pub(super) async fn leave(store: Arc<LeaseStore>, claim: Claim) -> Result<()> {
    store.waiters.forget([claim.owner]);
    let session = store.rest.session().await?;
    let (name, owner) = (claim.name.as_str(), claim.owner.to_bytes().to_vec());
    session.rows(&statements::LEAVE, &[&name, &owner]).await.map(drop)
}

/// Looks where the claim stands; `None` while it waits.
async fn look(store: &Arc<LeaseStore>, claim: &Claim) -> Result<Option<Turn>> {
    let mut status = heartbeat(store, claim).await?;
    if matches!(status, QueueStatus::Free) {
        // Lets the first waiter in, if the holder is gone.
        let session = store.rest.session().await?;
        session.rows(&statements::SERVE, &[&vec![claim.name.as_str()]]).await?;
        status = heartbeat(store, claim).await?;
    }
    match status {
        QueueStatus::Granted(grant) => Ok(Some(Turn::Granted(grant))),
        QueueStatus::Behind(asked, left) => {
            store.waiters.queued(claim.owner, asked, left);
            Ok(None)
        }
        // Free and given to nobody: we are the only one, and not alive at the server.
        QueueStatus::Lost | QueueStatus::Free => Ok(Some(Turn::TryAgain)),
    }
}

/// Where a waiter stands.
#[derive(Debug, Clone)]
enum QueueStatus {
    Granted(Grant),
    /// Neither queued nor granted.
    Lost,
    /// Queued, asked at this moment, behind a holder with so much time left.
    Behind(Moment, Duration),
    /// Queued, but nobody holds the lock.
    Free,
}

/// The heartbeats of a client's waiters, many in one request. `None` while nobody sends them.
#[derive(Debug, Default)]
pub(super) struct Heartbeats(Mutex<Option<Vec<Heartbeat>>>);

#[derive(Debug)]
struct Heartbeat {
    claim: Claim,
    reply: oneshot::Sender<Result<QueueStatus>>,
}

/// Says that this waiter is alive, and asks where it stands.
async fn heartbeat(store: &Arc<LeaseStore>, claim: &Claim) -> Result<QueueStatus> {
    let (reply, answer) = oneshot::channel();
    let heartbeat = Heartbeat { claim: claim.clone(), reply };
    {
        let mut collected = store.heartbeats.0.lock();
        if collected.is_none() {
            tokio::spawn(send_heartbeats(store.clone()));
        }
        collected.get_or_insert_default().push(heartbeat);
    }
    answer.await.unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "a heartbeat was dropped")))
}

async fn send_heartbeats(store: Arc<LeaseStore>) {
    loop {
        let mut heartbeats: Vec<Heartbeat> = {
            let mut collected = store.heartbeats.0.lock();
            let Some(some) = collected.as_mut().filter(|some| !some.is_empty()) else {
                *collected = None;
                return;
            };
            let count = some.len().min(MOST_AT_ONCE);
            some.drain(..count).collect()
        };
        heartbeats.retain(|heartbeat| !heartbeat.reply.is_closed());
        if heartbeats.is_empty() {
            continue;
        }
        let sent = send(&store, &heartbeats).await;
        let statuses = match sent {
            Ok(statuses) => statuses.into_iter().map(Ok).collect(),
            Err(error) => vec![Err(error); heartbeats.len()],
        };
        for (heartbeat, status) in heartbeats.into_iter().zip(statuses) {
            let _ = heartbeat.reply.send(status);
        }
    }
}

async fn send(store: &LeaseStore, heartbeats: &[Heartbeat]) -> Result<Vec<QueueStatus>> {
    let session = store.rest.session().await?;
    let (names, owners): (Vec<&str>, Vec<Vec<u8>>) = heartbeats
        .iter()
        .map(|Heartbeat { claim, .. }| (claim.name.as_str(), claim.owner.to_bytes().to_vec()))
        .collect();
    let sent = store.clock.now();
    let row = session.row(&statements::HEARTBEAT, &[&names, &owners, &nanos(sent)]).await?;
    let (states, lefts): (Column<i16>, Column<i64>) = (row.get(0), row.get(4));
    let grant = grants(&row, 1);
    let status = |place| match element(&states, place) {
        Some(0) => grant(place).map_or(QueueStatus::Lost, QueueStatus::Granted),
        Some(2) => {
            QueueStatus::Behind(sent, time::from_micros(element(&lefts, place).unwrap_or(0)))
        }
        Some(3) => QueueStatus::Free,
        _ => QueueStatus::Lost,
    };
    Ok((0..heartbeats.len()).map(status).collect())
}
