//! The session: one etcd lease that carries all locks of a client with the same TTL, and
//! the one keep-alive stream that proves it.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use etcd_client::{Error as EtcdError, GetOptions, LeaseKeepAliveStream, LeaseKeeper, PutOptions};
use tokio::sync::{mpsc, oneshot};

use super::error::{explain, is_about_token, is_lease_gone};
use super::keys::Layout;
use super::transport::Endpoints;
use crate::clock::{Clock, Moment};
use crate::error::{Error, ErrorKind, Result};

/// How long one proof may take at most.
const LONGEST_PROOF: Duration = Duration::from_secs(2);
/// How long a late request is feared.
const SUSPICION: Duration = Duration::from_secs(60);

/// How a session stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Standing {
    /// Alive, as of this moment on the client's clock at least.
    Proved(Moment),
    /// Its lease is gone, and with it every key.
    Ended,
}

/// One etcd lease of this client.
pub(super) struct Session {
    pub(super) id: i64,
    /// How long the lease lives from a keep-alive on.
    pub(super) ttl: Duration,
    state: Arc<State>,
    proofs: mpsc::UnboundedSender<oneshot::Sender<Result<Standing>>>,
    /// How many claims hang on it, and how many of them wait.
    pub(super) claims: AtomicUsize,
    pub(super) waiting: AtomicUsize,
    /// Since when it has had no claims, in nanoseconds.
    pub(super) idle_since: AtomicU64,
    /// Until when a key may appear on it that nobody wants, in nanoseconds.
    suspect_until: AtomicU64,
    pub(super) swept_at: AtomicU64,
    /// Whether it takes no new claims any more.
    retired: AtomicBool,
}

struct State {
    /// Nanoseconds: when the last keep-alive was sent that was answered.
    proved: AtomicU64,
    ended: AtomicBool,
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({:x})", self.id)
    }
}

impl Session {
    /// Makes a lease of this many seconds. The key that lives as long as it does follows.
    pub(super) async fn open(
        endpoints: Arc<Endpoints>,
        clock: Clock,
        layout: &Layout,
        seconds: u64,
    ) -> Result<Arc<Self>> {
        let at = clock.now();
        let wanted = i64::try_from(seconds).unwrap_or(i64::MAX);
        let lease = endpoints.call(async |mut etcd| etcd.lease_grant(wanted, None).await).await?;
        let (id, ttl) = (lease.id(), Duration::from_secs(lease.ttl().max(1) as u64));
        let sentinel = layout.session(id);
        let state = Arc::new(State {
            proved: AtomicU64::new(at.as_nanos()),
            ended: AtomicBool::new(false),
        });
        let (proofs, asked) = mpsc::unbounded_channel();
        let session = Self::new(id, ttl, state.clone(), proofs);
        let marked = false;
        let keeping = Keeping { id, ttl, sentinel, marked, endpoints, clock, state, stream: None };
        tokio::spawn(keeping.run(asked));
        Ok(Arc::new(session))
    }

    fn new(
        id: i64,
        ttl: Duration,
        state: Arc<State>,
        proofs: mpsc::UnboundedSender<oneshot::Sender<Result<Standing>>>,
    ) -> Self {
        let idle_since = AtomicU64::new(state.proved.load(Ordering::Acquire));
        Self {
            id,
            ttl,
            state,
            proofs,
            claims: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            idle_since,
            suspect_until: AtomicU64::new(0),
            swept_at: AtomicU64::new(0),
            retired: AtomicBool::new(false),
        }
    }

    /// One that was just proved, and that nobody keeps.
    #[cfg(test)]
    pub(super) fn unkept(id: i64, ttl: Duration, proved: Moment) -> Arc<Self> {
        let proved = AtomicU64::new(proved.as_nanos());
        let state = Arc::new(State { proved, ended: AtomicBool::new(false) });
        Arc::new(Self::new(id, ttl, state, mpsc::unbounded_channel().0))
    }

    /// When the last keep-alive was sent that proved it.
    pub(super) fn proved_at(&self) -> Moment {
        Moment::from_nanos(self.state.proved.load(Ordering::Acquire))
    }

    /// Until when the lease lives at least, as far as it was proved.
    pub(super) fn lives_until(&self) -> Moment {
        self.proved_at() + self.ttl
    }

    /// Whether it is known to be over.
    pub(super) fn has_ended(&self) -> bool {
        self.state.ended.load(Ordering::Acquire)
    }

    /// Whether something may be hung on it: what was not proved for so long would be late
    /// at birth.
    pub(super) fn is_usable(&self, now: Moment) -> bool {
        !self.has_ended() && self.lives_until() > now
    }

    /// A request said so.
    pub(super) fn end(&self) {
        self.state.ended.store(true, Ordering::Release);
    }

    /// Proves it again: a keep-alive, its answer, and that its key is still there.
    pub(super) async fn prove(&self) -> Result<Standing> {
        if self.has_ended() {
            return Ok(Standing::Ended);
        }
        let (reply, answer) = oneshot::channel();
        let nobody = || Error::new(ErrorKind::Internal, "nobody keeps the session alive");
        self.proofs.send(reply).map_err(|_| nobody())?;
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

    /// Whether it takes no new claims any more.
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
    ttl: Duration,
    sentinel: String,
    /// Whether the sentinel was put.
    marked: bool,
    endpoints: Arc<Endpoints>,
    clock: Clock,
    state: Arc<State>,
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

/// What a keep-alive's answer says.
struct Answer {
    at: Moment,
    alive: bool,
    term: u64,
}

impl Keeping {
    async fn run(mut self, mut asked: mpsc::UnboundedReceiver<oneshot::Sender<Result<Standing>>>) {
        // Whatever becomes of it: the first proof tries again.
        let _ = tokio::time::timeout(LONGEST_PROOF, self.mark()).await;
        while let Some(first) = asked.recv().await {
            let mut replies = vec![first];
            while let Ok(reply) = asked.try_recv() {
                replies.push(reply);
            }
            let standing = self.prove().await;
            for reply in replies {
                let _ = reply.send(standing.clone());
            }
        }
        if !self.state.ended.load(Ordering::Acquire) {
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
            self.endpoints.call(async |mut etcd| etcd.put(sentinel, "", Some(options)).await);
        match putting.await {
            Err(error) if is_lease_gone(&error) => {
                self.state.ended.store(true, Ordering::Release);
                Err(error)
            }
            done => {
                self.marked = done.is_ok();
                done.map(drop)
            }
        }
    }

    async fn prove(&mut self) -> Result<Standing> {
        if self.state.ended.load(Ordering::Acquire) {
            return Ok(Standing::Ended);
        }
        let limit = (self.ttl / 3).min(LONGEST_PROOF);
        let (member, _) = self.endpoints.current().await?;
        let proving = tokio::time::timeout(limit, self.prove_at(member)).await;
        let standing = proving.unwrap_or_else(|_| Err(Error::no_answer(limit)));
        if standing.is_err() {
            // A stream that died is opened again, at another member if there is one.
            self.stream = None;
            self.endpoints.leave(member);
        }
        standing
    }

    async fn prove_at(&mut self, member: usize) -> Result<Standing> {
        if let Err(error) = self.mark().await {
            return if is_lease_gone(&error) { Ok(Standing::Ended) } else { Err(error) };
        }
        let opened = self.stream.as_ref().filter(|stream| stream.member == member);
        let tokens = opened.map_or_else(|| self.endpoints.tokens(), |stream| stream.tokens);
        let answer = match self.keep_alive(member).await {
            Err(error) if is_about_token(&error) => {
                self.stream = None;
                self.endpoints.renew_token(tokens).await;
                self.keep_alive(member).await?
            }
            answer => answer?,
        };
        let sentinel = self.sentinel.clone();
        let options = GetOptions::new().with_keys_only();
        let seen =
            self.endpoints.call(async |mut etcd| etcd.get(sentinel, Some(options)).await).await?;
        let term = seen.header().map_or(0, |header| header.raft_term());
        if seen.kvs().is_empty() {
            self.state.ended.store(true, Ordering::Release);
            return Ok(Standing::Ended);
        }
        if !answer.alive {
            let message = "the lease is there, but its keep-alive was refused";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        if answer.term != term {
            // Keep-alives are answered from the leader's memory: one that was deposed
            // answers as well, and proves nothing. The read was agreed upon by a majority.
            let message = "the cluster elected another leader meanwhile";
            return Err(Error::new(ErrorKind::Unavailable, message));
        }
        self.state.proved.fetch_max(answer.at.as_nanos(), Ordering::AcqRel);
        Ok(Standing::Proved(answer.at))
    }

    async fn keep_alive(&mut self, member: usize) -> Result<Answer> {
        if self.stream.as_ref().is_none_or(|stream| stream.member != member) {
            self.stream = None;
            let (member, mut etcd) = self.endpoints.current().await?;
            let tokens = self.endpoints.tokens();
            match etcd.lease_keep_alive(self.id).await {
                Ok((keeper, answers)) => {
                    self.stream = Some(Stream { keeper, answers, member, tokens });
                }
                // The driver's word for an answer with no time left.
                Err(EtcdError::LeaseKeepAliveError(_)) => return Ok(Answer::gone(&self.clock)),
                Err(error) => {
                    let error = explain(error);
                    let gone = is_lease_gone(&error);
                    return if gone { Ok(Answer::gone(&self.clock)) } else { Err(error) };
                }
            }
        }
        let over = || Error::new(ErrorKind::Unreachable, "the keep-alive stream ended");
        let stream = self.stream.as_mut().ok_or_else(over)?;
        let at = self.clock.now();
        stream.keeper.keep_alive().await.map_err(explain)?;
        let answer = stream.answers.message().await.map_err(explain)?.ok_or_else(over)?;
        let term = answer.header().map_or(0, |header| header.raft_term());
        Ok(Answer { at, alive: answer.ttl() > 0, term })
    }
}

impl Answer {
    fn gone(clock: &Clock) -> Self {
        Self { at: clock.now(), alive: false, term: 0 }
    }
}
