//! The session: one etcd lease that carries all locks of a client with the same TTL, the
//! one keep-alive stream that proves it, and the watch that tells of its end.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use etcd_client::{
    Error as EtcdError, EventType, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions,
};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use super::EtcdStore;
use super::error::{explain, is_about_token, is_lease_gone};
use super::transport::Endpoints;
use super::watcher::{Heard, Watch};
use crate::backend::Hint;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// How long one proof may take at most.
const LONGEST_PROOF: Duration = Duration::from_secs(2);
/// How long a late request is feared.
const SUSPICION: Duration = Duration::from_secs(60);

/// What a proof showed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SessionState {
    /// Alive, as of this moment on the client's clock at least.
    Proved(Moment),
    /// Its lease is gone, and with it every key.
    Ended,
}

type Question = (Arc<Session>, oneshot::Sender<Result<SessionState>>);

/// One etcd lease of this client.
pub(super) struct Session {
    pub(super) id: i64,
    /// How long the lease lives from a keep-alive on.
    pub(super) ttl: Duration,
    /// Nanoseconds: when the last keep-alive was sent that was answered.
    proved: AtomicU64,
    ended: AtomicBool,
    proofs: mpsc::UnboundedSender<Question>,
    /// Until when a key may appear on it that nobody wants, in nanoseconds.
    suspect_until: AtomicU64,
    /// Whether it takes no new claims any more.
    retired: AtomicBool,
    /// The watch on the key that lives as long as it does.
    watch: Mutex<Option<Watch>>,
}

impl Session {
    /// Makes a lease of this many seconds. The key that lives as long as it does follows.
    pub(super) async fn open(store: &Arc<EtcdStore>, seconds: u64) -> Result<Arc<Self>> {
        let (clock, endpoints) = (store.clock.clone(), store.endpoints.clone());
        let at = clock.now();
        let wanted = i64::try_from(seconds).unwrap_or(i64::MAX);
        let lease = endpoints.call(async |mut etcd| etcd.lease_grant(wanted, None).await).await?;
        let (id, ttl) = (lease.id(), Duration::from_secs(lease.ttl().max(1) as u64));
        let (session, asked) = Self::new(id, ttl, at);
        let sentinel = store.layout.session(id);
        let keeping = Keeping { id, sentinel, marked: false, endpoints, clock, stream: None };
        tokio::spawn(keeping.run(asked));
        session.watch(store);
        Ok(session)
    }

    /// One that was just proved, and that nobody keeps yet.
    pub(super) fn new(
        id: i64,
        ttl: Duration,
        proved: Moment,
    ) -> (Arc<Self>, mpsc::UnboundedReceiver<Question>) {
        let (proofs, asked) = mpsc::unbounded_channel();
        let session = Self {
            id,
            ttl,
            proved: AtomicU64::new(proved.as_nanos()),
            ended: AtomicBool::new(false),
            proofs,
            suspect_until: AtomicU64::new(0),
            retired: AtomicBool::new(false),
            watch: Mutex::default(),
        };
        (Arc::new(session), asked)
    }

    /// Watches the key that goes with it, unless that is watched already.
    pub(super) fn watch(self: &Arc<Self>, store: &Arc<EtcdStore>) {
        let mut watch = self.watch.lock();
        if self.has_ended() || watch.as_ref().is_some_and(|watch| !watch.is_over()) {
            return;
        }
        let key = store.layout.session(self.id);
        let keys = Range { end: format!("{key}\0"), start: key };
        let (own_store, session) = (Arc::downgrade(store), Arc::downgrade(self));
        *watch = Some(store.watcher.watch(keys, false, move |heard| {
            if let Heard::Events(events) = heard
                && events.iter().any(|event| event.event_type() == EventType::Delete)
                && let (Some(store), Some(session)) = (own_store.upgrade(), session.upgrade())
                // Before its time: one that nobody renewed ends what its deadlines have ended.
                && session.lives_until() > store.clock.now()
            {
                store.hints.announce(Hint::All);
            }
        }));
    }

    /// When the last keep-alive was sent that proved it.
    pub(super) fn proved_at(&self) -> Moment {
        Moment::from_nanos(self.proved.load(Ordering::Acquire))
    }

    /// Until when the lease lives at least, as far as it was proved.
    pub(super) fn lives_until(&self) -> Moment {
        self.proved_at() + self.ttl
    }

    /// Whether it is known to be over.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether something may be hung on it. On a session that was not proved for so long it
    /// would be late at birth.
    pub(super) fn is_usable(&self, now: Moment) -> bool {
        !self.has_ended() && self.lives_until() > now
    }

    /// An answer said so.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Proves it again: a keep-alive, its answer, and that its key is still there.
    pub(super) async fn prove(self: &Arc<Self>) -> Result<SessionState> {
        if self.has_ended() {
            return Ok(SessionState::Ended);
        }
        let (reply, answer) = oneshot::channel();
        let nobody = || Error::new(ErrorKind::Internal, "nobody keeps the session alive");
        self.proofs.send((self.clone(), reply)).map_err(|_| nobody())?;
        answer.await.map_err(|_| nobody())?
    }

    /// A request on it got no answer: it may still leave a key behind.
    pub(super) fn suspect(&self, now: Moment) {
        self.suspect_until.fetch_max((now + SUSPICION).as_nanos(), Ordering::AcqRel);
    }

    /// A deletion on it got no answer, and would take any key of that name: no new claim
    /// may be put where it could find it.
    pub(super) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
    }

    pub(super) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// Whether a late key is feared.
    pub(super) fn is_suspect(&self, now: Moment) -> bool {
        self.suspect_until.load(Ordering::Acquire) > now.as_nanos()
    }
}

/// The task behind a session.
struct Keeping {
    id: i64,
    sentinel: String,
    /// Whether the sentinel was put.
    marked: bool,
    endpoints: Arc<Endpoints>,
    clock: Clock,
    stream: Option<Stream>,
}

/// A keep-alive stream, and the member it goes to.
struct Stream {
    keeper: LeaseKeeper,
    answers: LeaseKeepAliveStream,
    member: usize,
    /// How many tokens of the member had been renewed when it was opened.
    tokens: u64,
}

impl Keeping {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<Question>) {
        // Whatever becomes of it: the first proof tries again.
        let _ = tokio::time::timeout(LONGEST_PROOF, self.mark()).await;
        let mut ended = false;
        while let Some((session, first)) = asked.recv().await {
            let mut replies = vec![first];
            while let Ok((_, reply)) = asked.try_recv() {
                replies.push(reply);
            }
            let state = self.prove(&session).await;
            for reply in replies {
                let _ = reply.send(state.clone());
            }
            ended = session.has_ended();
        }
        if !ended {
            // The client is gone: whatever is left of it need not wait for the TTL.
            let id = self.id;
            let revoking = self.endpoints.call(async |mut etcd| etcd.lease_revoke(id).await);
            let _ = self.endpoints.within(LONGEST_PROOF, revoking).await;
        }
    }

    /// Puts the key that lives as long as the lease does.
    async fn mark(&mut self) -> Result<()> {
        if self.marked {
            return Ok(());
        }
        let (sentinel, options) = (self.sentinel.clone(), PutOptions::new().with_lease(self.id));
        let putting =
            self.endpoints.on_keys(async |mut kv| kv.put(sentinel, "", Some(options)).await);
        putting.await?;
        self.marked = true;
        Ok(())
    }

    async fn prove(&mut self, session: &Session) -> Result<SessionState> {
        if session.has_ended() {
            return Ok(SessionState::Ended);
        }
        let limit = (session.ttl / 3).min(LONGEST_PROOF);
        let (member, _) = self.endpoints.current().await?;
        let proving = tokio::time::timeout(limit, self.prove_at(session, member)).await;
        let state = proving.unwrap_or_else(|_| Err(Error::no_answer(limit)));
        if state.is_err() {
            // A stream that died is opened again, at another member if there is one.
            self.stream = None;
            self.endpoints.leave(member);
        }
        state
    }

    async fn prove_at(&mut self, session: &Session, member: usize) -> Result<SessionState> {
        match self.mark().await {
            Err(error) if is_lease_gone(&error) => {
                session.end();
                return Ok(SessionState::Ended);
            }
            marked => marked?,
        }
        let opened = self.stream.as_ref().filter(|stream| stream.member == member);
        let tokens = opened.map_or_else(|| self.endpoints.tokens(), |stream| stream.tokens);
        let kept = match self.keep_alive(member).await {
            Err(error) if is_about_token(&error) => {
                self.stream = None;
                self.endpoints.renew_token(tokens).await;
                self.keep_alive(member).await?
            }
            kept => kept?,
        };
        let options = GetOptions::new().with_keys_only();
        let seen = self.endpoints.get(&*self.sentinel, options).await?;
        let term = seen.header().map_or(0, |header| header.raft_term());
        if seen.kvs().is_empty() {
            session.end();
            return Ok(SessionState::Ended);
        }
        let Some((at, kept_in_term)) = kept else {
            let message = "the lease is there, but its keep-alive was refused";
            return Err(Error::new(ErrorKind::Unavailable, message));
        };
        if kept_in_term != term {
            // Keep-alives are answered from the leader's memory: one that was deposed
            // answers as well, and proves nothing. The read was agreed upon by a majority.
            let message = "the cluster elected another leader meanwhile";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        session.proved.fetch_max(at.as_nanos(), Ordering::AcqRel);
        Ok(SessionState::Proved(at))
    }

    /// When the keep-alive was sent, and the term of its answer; `None` if it was refused.
    async fn keep_alive(&mut self, member: usize) -> Result<Option<(Moment, u64)>> {
        if self.stream.as_ref().is_none_or(|stream| stream.member != member) {
            self.stream = None;
            let (member, mut etcd) = self.endpoints.current().await?;
            let tokens = self.endpoints.tokens();
            match etcd.lease_keep_alive(self.id).await {
                Ok((keeper, answers)) => {
                    self.stream = Some(Stream { keeper, answers, member, tokens });
                }
                // The driver's word for an answer with no time left.
                Err(EtcdError::LeaseKeepAliveError(_)) => return Ok(None),
                Err(error) => {
                    let error = explain(error);
                    return if is_lease_gone(&error) { Ok(None) } else { Err(error) };
                }
            }
        }
        let over = || Error::new(ErrorKind::Unreachable, "the keep-alive stream ended");
        let stream = self.stream.as_mut().ok_or_else(over)?;
        let at = self.clock.now();
        stream.keeper.keep_alive().await.map_err(explain)?;
        let answer = stream.answers.message().await.map_err(explain)?.ok_or_else(over)?;
        let term = answer.header().map_or(0, |header| header.raft_term());
        Ok((answer.ttl() > 0).then_some((at, term)))
    }
}
