//! Taking locks: a node in the queue, and a look at who stands before it, in one flight.
//!
//! What is read after our own node was created, on the same session, shows everyone who
//! came before us, also on a server that is behind: to be first there is to have the lock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, join_all};
use tokio::time::timeout;
use zookeeper_client::{CreateMode, Error as Zk, MultiReadResult, MultiWriteResult};

use super::error::{found, mixed, of_request};
use super::layout::{Listing, Place};
use super::ledger::{Entry, Node, Stage};
use super::queue::Queue;
use super::session::{Session, by_session};
use super::{ZookeeperStore, nodes, payload};
use crate::backend::{Claim, Grant, Verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Outcome, Result};
use crate::token::Token;

/// How long an event may stay behind the answer that it came with.
const EVENTS_COME_WITHIN: Duration = Duration::from_millis(50);
/// After so long a waiter reads again who holds the lock.
const TOLD_AGAIN_AFTER: Duration = Duration::from_secs(2);
/// How long to settle waits for a connection that broke: less than anybody waits for an answer.
const A_WHILE: Duration = Duration::from_secs(1);

/// How many locks are remembered. What is known of a lock only saves requests.
const MOST_REMEMBERED: usize = 100_000;

/// What is remembered of a lock, whose node exists.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    /// Whether somebody else had it when we last tried.
    contested: bool,
    /// When that was.
    tried: Moment,
}

/// How we know of those in the queue.
enum Seen {
    /// They were read after the node had been created.
    Listed(Listing),
    /// We follow the queue already, and are told of our own node as of any other.
    Followed(Arc<Queue>),
}

pub(super) async fn acquire(
    store: Arc<ZookeeperStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Verdict>> {
    store.explained(acquire_all(&store, claims).await)
}

async fn acquire_all(store: &ZookeeperStore, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
    let mut verdicts = vec![None; claims.len()];
    let mut requests = Vec::new();
    // First what can fail without a trace.
    for (at, claim) in claims.into_iter().enumerate() {
        let session = store.sessions.of(claim.ttl).await?;
        session.check_ttl(claim.ttl)?;
        let lock = store.paths.lock(&claim.name);
        let entry = Entry::new(claim, lock, session.clone());
        verdicts[at] = look_before(store, &entry).await?;
        if verdicts[at].is_none() {
            requests.push((session, (at, entry)));
        }
    }
    let mut applied = false;
    for (session, requests) in by_session(requests) {
        let (places, entries): (Vec<usize>, Vec<Entry>) = requests.into_iter().unzip();
        let answers = send(store, &session, &entries).await.map_err(|error| match applied {
            true => error.outcome_unknown(),
            false => error,
        })?;
        applied = true;
        for (at, verdict) in places.into_iter().zip(answers) {
            verdicts[at] = Some(verdict);
        }
    }
    Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Held(None))).collect())
}

/// What is known without a new node: it is ours already, or settled, or certainly held.
async fn look_before(store: &ZookeeperStore, new: &Entry) -> Result<Option<Verdict>> {
    let Entry { claim, session, lock, .. } = new;
    let now = store.shared.clock.now();
    if store.shared.ledger.lock().tombstones.has(claim.owner, now) {
        return Ok(Some(Verdict::Held(None)));
    }
    if let Some(entry) = store.shared.entry(claim.owner) {
        return look_again(store, Entry { claim: claim.clone(), ..entry }).await;
    }
    let contested = store.known.lock().get(lock).is_some_and(|known| known.contested);
    if claim.queue || !contested {
        return Ok(None);
    }
    // It was held when we last tried: a look costs less than a node that goes again.
    // A server that is behind would still show a node that has gone.
    let Some(children) = session.children(lock).await? else { return Ok(None) };
    let listing = nodes::read(store, &claim.name, children);
    refuse_mixed(store, lock, &listing)?;
    let Some(first) = listing.queue.first() else { return Ok(None) };
    Ok(Some(Verdict::Held(nodes::held_by(store, new, Some(first)).await)))
}

/// A claim that was made before: it keeps what it has. `None` if that is nothing.
async fn look_again(store: &ZookeeperStore, entry: Entry) -> Result<Option<Verdict>> {
    let Entry { claim, session, lock, .. } = &entry;
    if session.is_over() {
        store.shared.remove(claim.owner);
        return Ok(None);
    }
    let node = match &entry.stage {
        Stage::Held { .. } => return Ok(entry.grant().map(Verdict::Granted)),
        Stage::Leaving { .. } => return Ok(Some(Verdict::Held(None))),
        Stage::Waiting { node, .. } => Some(node.clone()),
        Stage::Asked => nodes::find(store, &entry).await?,
    };
    let listing = nodes::list(store, &entry).await?;
    if matches!(entry.stage, Stage::Waiting { .. }) {
        // It keeps its place: the foreign node may go.
        store.shared.attend(claim.owner, 0);
        refuse_mixed(store, lock, &listing)?;
    }
    let Some(node) = node.filter(|node| listing.ahead_of(&node.child).is_some()) else {
        store.shared.remove(claim.owner);
        return Ok(None);
    };
    session.renew_proof(claim.ttl, lock).await?;
    judge(store, &entry, node, Seen::Listed(listing)).await.map(Some)
}

/// Refuses a lock with nodes of the other layout. Counting them would not be enough: their
/// clients do not count ours.
fn refuse_mixed(store: &ZookeeperStore, lock: &str, listing: &Listing) -> Result<()> {
    match listing.foreign.first() {
        Some(foreign) => Err(mixed(lock, foreign, store.target.layout)),
        None => Ok(()),
    }
}

/// Puts claims of one session into their queues, and says what each of them got.
async fn send(
    store: &ZookeeperStore,
    session: &Session,
    entries: &[Entry],
) -> Result<Vec<Verdict>> {
    // Before anything is entered or sent.
    if let [entry] = entries
        && let Some(queue) = followed(entry)
    {
        queue.gather().await;
    }
    if !store.shared.enter(entries.iter()) {
        // Meanwhile, or while its session was opened: it must not come now.
        return Err(
            Error::new(ErrorKind::Unavailable, "a claim was settled meanwhile").not_applied()
        );
    }
    store.shared.chores.notify_one();
    let placed = place(store, session, entries).await.inspect_err(|error| {
        if error.outcome() == Outcome::NotApplied {
            entries.iter().for_each(|entry| store.shared.remove(entry.claim.owner));
        }
    })?;
    let mut verdicts = Vec::with_capacity(entries.len());
    for (entry, (node, seen)) in entries.iter().zip(placed) {
        verdicts.push(judge(store, entry, node, seen).await);
    }
    // If one is refused, each is asked for again alone, and the others keep what they got here.
    verdicts.into_iter().collect()
}

/// Creates the nodes of claims, and those above them where they are missing.
async fn place(
    store: &ZookeeperStore,
    session: &Session,
    entries: &[Entry],
) -> Result<Vec<(Node, Seen)>> {
    let (paths, client) = (&store.paths, &session.client);
    let tick = (entries.len() > 1).then(|| (paths.tick(), CreateMode::Persistent));
    let locks = entries.iter().map(|entry| (entry.lock.clone(), paths.parents));
    let above: Vec<_> = locks.chain(tick).collect();
    for _ in 0..2 {
        session.check_connected()?;
        let sent = store.shared.clock.now();
        // All is sent now, and answered in this order.
        let missing = above.iter().filter(|(path, _)| !store.known.lock().contains_key(path));
        let parents = missing.map(|(path, mode)| client.create(path, b"", &paths.options(*mode)));
        let parents = join_all(parents.collect::<Vec<_>>());
        let placed = match entries {
            [entry] => place_one(store, entry, sent, parents).await?.map(|placed| vec![placed]),
            _ => place_many(store, session, entries, sent, parents).await?,
        };
        if let Some(placed) = placed {
            return Ok(placed);
        }
        for (path, mode) in &above {
            store.known.lock().remove(path);
            paths.make(client, path, *mode).await?;
        }
    }
    Err(of_request(Zk::NoNode))
}

/// The path of a claim's node, but for the number that ZooKeeper adds.
fn prefix(store: &ZookeeperStore, entry: &Entry) -> String {
    format!("{}/{}", entry.lock, store.target.layout.prefix(entry.claim.owner))
}

/// `None` if a node above it is missing.
async fn place_one(
    store: &ZookeeperStore,
    entry: &Entry,
    sent: Moment,
    parents: impl Future,
) -> Result<Option<(Node, Seen)>> {
    let Entry { claim, session, lock, .. } = entry;
    let (client, path, payload) = (&session.client, prefix(store, entry), payload::of(claim, None));
    let options = store.paths.options(CreateMode::EphemeralSequential);
    let creating = client.create(&path, &payload, &options);
    let seeing = match followed(entry) {
        Some(queue) => Either::Left(queue),
        None => Either::Right(client.list_children(lock)),
    };
    // If one failed for a reason that counts, so does the next one.
    parents.await;
    let Some((stat, sequence)) = found(creating.await)? else { return Ok(None) };
    session.proved(sent);
    let child = format!("{}{sequence}", &path[lock.len() + 1..]);
    let node = Node { child: child.into(), token: payload::token(&stat) };
    let seen = match seeing {
        Either::Left(queue) => Seen::Followed(queue),
        Either::Right(listing) => {
            let children = listing.await.map_err(|error| of_request(error).outcome_unknown())?;
            Seen::Listed(nodes::read(store, &claim.name, children))
        }
    };
    Ok(Some((node, seen)))
}

/// Many in one transaction. `None` if a node above them is missing.
async fn place_many(
    store: &ZookeeperStore,
    session: &Session,
    entries: &[Entry],
    sent: Moment,
    parents: impl Future,
) -> Result<Option<Vec<(Node, Seen)>>> {
    let (client, tick) = (&session.client, store.paths.tick());
    let (mut writer, mut reader) = (client.new_multi_writer(), client.new_multi_reader());
    let options = store.paths.options(CreateMode::EphemeralSequential);
    // Only the queues that we do not follow already are read.
    let queues: Vec<_> = entries.iter().map(followed).collect();
    for (entry, queue) in entries.iter().zip(&queues) {
        let (path, payload) = (prefix(store, entry), payload::of(&entry.claim, None));
        writer.add_create(&path, &payload, &options).map_err(of_request)?;
        if queue.is_none() {
            reader.add_get_children(&entry.lock).map_err(of_request)?;
        }
    }
    writer.add_set_data(&tick, b"", None).map_err(of_request)?;
    let (creating, listing) = (writer.commit(), reader.commit());
    parents.await;
    let Some(created) = found(creating.await.map_err(Zk::from))? else { return Ok(None) };
    session.proved(sent);
    remember(store, &tick, Known { contested: false, tried: sent });
    // From here on nodes exist: whatever fails has an unknown outcome.
    let listed = listing.await.map_err(|error| of_request(error).outcome_unknown())?;
    let (mut paths, mut token) = (Vec::with_capacity(entries.len()), None);
    for result in created {
        match result {
            MultiWriteResult::Create { path, .. } => paths.push(path),
            // The token of all that was created in the transaction that wrote this node. Before
            // 3.8.2 the answers to a `multi` do not tell it otherwise (ZOOKEEPER-4026, -4667).
            MultiWriteResult::SetData { stat } => {
                token = Some(Token::new(stat.mzxid.unsigned_abs()));
            }
            _ => {}
        }
    }
    let token = token.filter(|_| paths.len() == entries.len()).ok_or_else(incomplete)?;
    let mut listed = listed.into_iter();
    let mut placed = Vec::with_capacity(entries.len());
    for ((entry, path), queue) in entries.iter().zip(paths).zip(queues) {
        let seen = match queue {
            Some(queue) => Seen::Followed(queue),
            None => match listed.next() {
                Some(MultiReadResult::Children { children }) => {
                    Seen::Listed(nodes::read(store, &entry.claim.name, children))
                }
                Some(MultiReadResult::Error { err }) => {
                    return Err(of_request(err).outcome_unknown());
                }
                _ => return Err(incomplete()),
            },
        };
        placed.push((Node { child: path[entry.lock.len() + 1..].into(), token }, seen));
    }
    Ok(Some(placed))
}

fn incomplete() -> Error {
    let message = "ZooKeeper did not answer each claim of a batch";
    Error::new(ErrorKind::Internal, message)
}

/// The queue of a claim's lock, if we see all that happens there. A claim that does not wait
/// must know for certain, and reads it.
fn followed(Entry { claim, session, lock, .. }: &Entry) -> Option<Arc<Queue>> {
    claim.queue.then(|| session.followed(lock)).flatten()
}

/// What a claim with a node in the queue gets. An error if nodes of the other layout are there,
/// too: its own is gone then.
async fn judge(store: &ZookeeperStore, entry: &Entry, node: Node, seen: Seen) -> Result<Verdict> {
    let Entry { claim, session, lock, .. } = entry;
    let (shared, owner) = (&store.shared, claim.owner);
    let (place, first) = match seen {
        // Not followed for the next time: two events for each turn cost more than the
        // look that goes along with its creation.
        Seen::Listed(listing) => (listing.place(&node.child), listing.queue.into_iter().next()),
        Seen::Followed(queue) => {
            let waiter = queue.join(&node.child);
            // The server tells of a node before it answers its creation.
            let place = timeout(EVENTS_COME_WITHIN, waiter.seen()).await;
            *queue.used.lock() = shared.clock.now();
            (place.unwrap_or(Place::Unknown), queue.first())
        }
    };
    if let Place::Mixed(foreign) = &place {
        shared.leaving(owner, node);
        let refused = mixed(lock, foreign, store.target.layout);
        return Err(match nodes::take_out(store, owner).await {
            Ok(()) => refused,
            Err(_) => refused.outcome_unknown(),
        });
    }
    let now = shared.clock.now();
    let before = remember(store, lock, Known { contested: place != Place::First, tried: now });
    let ahead = match place {
        Place::First => {
            let grant = shared.granted(owner, node, session);
            return Ok(grant.map_or(Verdict::Held(None), Verdict::Granted));
        }
        Place::Behind(ahead) if claim.queue => ahead,
        // The waiter finds out.
        Place::Unknown | Place::Over => 0,
        // Gone already (by force), or not to wait: then out of the queue again.
        _ => {
            shared.leaving(owner, node);
            let leaving = nodes::take_out(store, owner);
            let holder = nodes::held_by(store, entry, first.as_ref());
            return Ok(Verdict::Held(tokio::join!(holder, leaving).0));
        }
    };
    shared.queued(owner, node, ahead);
    // A client that waits here again and again need not read each time for whom.
    let is_told =
        before.is_some_and(|before| before.contested && before.tried.until(now) < TOLD_AGAIN_AFTER);
    let first = first.filter(|_| !is_told);
    Ok(Verdict::Queued(nodes::held_by(store, entry, first.as_ref()).await))
}

/// Remembers a lock; what was known of it before.
fn remember(store: &ZookeeperStore, lock: &Arc<str>, now: Known) -> Option<Known> {
    let mut known = store.known.lock();
    if known.len() >= MOST_REMEMBERED && !known.contains_key(lock) {
        known.clear();
    }
    known.insert(lock.clone(), now)
}

pub(super) async fn settle(
    store: Arc<ZookeeperStore>,
    claims: Vec<Claim>,
) -> Result<Vec<Option<Grant>>> {
    let mut grants = Vec::with_capacity(claims.len());
    for claim in &claims {
        grants.push(settle_one(&store, claim).await?);
    }
    Ok(grants)
}

/// The grant if the lock is this owner's; otherwise its node is gone afterwards, and the owner
/// has a tombstone.
async fn settle_one(store: &ZookeeperStore, claim: &Claim) -> Result<Option<Grant>> {
    let (owner, shared) = (claim.owner, &store.shared);
    let now = shared.clock.now();
    if let Some(entry) = shared.entry(owner).filter(|entry| !entry.session.is_over()) {
        // The caller asks a few times only.
        let _ = entry.session.wait_connected(A_WHILE).await;
        match &entry.stage {
            Stage::Held { .. } if entry.until > now => return Ok(entry.grant()),
            Stage::Asked => {
                if let Some(node) = nodes::find(store, &entry).await? {
                    shared.queued(owner, node.clone(), 0);
                    let listing = nodes::list(store, &entry).await?;
                    if listing.place(&node.child) == Place::First {
                        return Ok(shared.granted(owner, node, &entry.session));
                    }
                }
                // It may still be on its way, on a connection that was cut.
                entry.session.expect_strangers();
            }
            _ => {}
        }
    }
    // Before its node goes: nothing must come between.
    shared.bury(owner, claim.ttl);
    nodes::take_out(store, owner).await?;
    Ok(None)
}
