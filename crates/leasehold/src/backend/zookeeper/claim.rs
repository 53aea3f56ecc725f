//! Taking locks: a node in line, and a look at who stands before it, in one flight.
//!
//! What is read after our own node was created, on the same session, shows everyone who
//! came before us, also on a server that is behind: to be first there is to have the lock.

use std::sync::Arc;

use zookeeper_client::{Error as Zk, MultiReadResult, MultiWriteError, MultiWriteResult};

use super::ZookeeperStore;
use super::card::{self, Card};
use super::error::of_request;
use super::layout::Contender;
use super::session::Session;
use super::table::{Entry, Node, Stand};
use crate::backend::{Claim, Verdict};
use crate::clock::Moment;
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HeldBy;
use crate::token::Token;

/// A claim on its way: its lock's node, its node's name but for the number.
struct Wish<'a> {
    claim: &'a Claim,
    lock: Arc<str>,
    prefix: String,
    data: Vec<u8>,
}

/// What became of it: its node, and who stands in line.
struct Placed {
    node: Node,
    line: Vec<Contender>,
}

impl ZookeeperStore {
    pub(super) async fn claim(&self, claims: Vec<Claim>) -> Result<Vec<Verdict>> {
        let mut verdicts: Vec<Option<Verdict>> = Vec::new();
        let mut sessions = Vec::new();
        // First what can fail without a trace.
        for claim in &claims {
            sessions.push(self.sessions.of(claim.ttl).await?);
            verdicts.push(self.look_before(claim).await?);
        }
        let mut groups: Vec<(Arc<Session>, Vec<usize>)> = Vec::new();
        for (at, session) in sessions.into_iter().enumerate() {
            if verdicts[at].is_some() {
                continue;
            }
            match groups.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &session)) {
                Some((_, group)) => group.push(at),
                None => groups.push((session, vec![at])),
            }
        }
        let mut applied = false;
        for (session, group) in groups {
            let wishes = group.iter().map(|at| self.wish(&claims[*at])).collect();
            let answers = self.place(&session, wishes).await.map_err(|error| match applied {
                true => error.outcome_unknown(),
                false => error,
            })?;
            applied = true;
            for (at, answer) in group.into_iter().zip(answers) {
                verdicts[at] = Some(answer);
            }
        }
        Ok(verdicts.into_iter().map(|verdict| verdict.unwrap_or(Verdict::Held(None))).collect())
    }

    /// What is known without a new node: it is ours already, or barred, or certainly held.
    async fn look_before(&self, claim: &Claim) -> Result<Option<Verdict>> {
        let now = self.books.clock.now();
        if self.books.table.is_barred(claim.owner, now) {
            return Ok(Some(Verdict::Held(None)));
        }
        if let Some(entry) = self.books.table.get(claim.owner) {
            return self.look_again(claim, entry).await;
        }
        let lock = self.paths.lock(&claim.name);
        if claim.queue || !self.nodes.is_contested(&lock) {
            return Ok(None);
        }
        // It was held when we last tried: a look costs less than a node that goes again.
        let session = self.sessions.of(claim.ttl).await?;
        // A server that is behind would still show a node that has gone.
        let (syncing, listing) = (session.client.sync(&lock), session.client.list_children(&lock));
        syncing.await.map_err(of_request)?;
        let children = match listing.await {
            Ok(children) => children,
            Err(Zk::NoNode) => return Ok(None),
            Err(error) => return Err(of_request(error)),
        };
        match self.line(&claim.name, children).first() {
            Some(first) => Ok(Some(Verdict::Held(self.held_by(&session, &lock, first).await))),
            None => Ok(None),
        }
    }

    /// A claim that was made before: it keeps what it has. `None` if that is nothing.
    async fn look_again(&self, claim: &Claim, entry: Entry) -> Result<Option<Verdict>> {
        let owner = claim.owner;
        if entry.session.is_over() {
            self.books.table.remove(owner);
            return Ok(None);
        }
        let node = match entry.stand {
            Stand::Held { node, proof, .. } => {
                let grant = crate::backend::Grant { token: node.token, proof };
                return Ok(Some(Verdict::Granted(grant)));
            }
            Stand::Leaving { .. } => return Ok(Some(Verdict::Held(None))),
            Stand::Waiting { ref node, .. } => Some(node.clone()),
            Stand::Asked { .. } => self.find(&entry, owner).await?,
        };
        let line = self.list(&entry.session, &entry.lock, &claim.name).await?;
        match node.filter(|node| line.iter().any(|other| *other.child == *node.child)) {
            None => {
                self.books.table.remove(owner);
                Ok(None)
            }
            Some(node) => {
                if entry.session.age_of_proof() > entry.ttl() / 2 {
                    entry.session.prove(&entry.lock).await?;
                }
                let placed = Placed { node, line };
                Ok(Some(self.judge(&entry.session, claim, &entry.lock, placed).await))
            }
        }
    }

    fn wish<'a>(&self, claim: &'a Claim) -> Wish<'a> {
        let lock = self.paths.lock(&claim.name);
        let prefix = format!("{lock}/{}", self.target.layout.prefix(claim.owner));
        let data = card(claim).to_bytes();
        Wish { claim, lock, prefix, data }
    }

    /// Puts these claims in line, and says what each of them got.
    async fn place(&self, session: &Arc<Session>, wishes: Vec<Wish<'_>>) -> Result<Vec<Verdict>> {
        let now = self.books.clock.now();
        for wish in &wishes {
            // Barred while its session was opened: it must not come now.
            if self.books.table.is_barred(wish.claim.owner, now) {
                return Err(Error::new(ErrorKind::Unavailable, "a claim was settled meanwhile"));
            }
        }
        for wish in &wishes {
            let entry = Entry {
                name: wish.claim.name.clone(),
                lock: wish.lock.clone(),
                session: session.clone(),
                card: card(wish.claim),
                stand: Stand::Asked { at: now },
            };
            self.books.table.insert(wish.claim.owner, entry);
        }
        self.books.ring.notify_one();
        let placed = match wishes.as_slice() {
            [wish] => self.place_one(session, wish).await.map(|placed| vec![placed]),
            _ => self.place_many(session, &wishes).await,
        };
        let placed = placed.inspect_err(|error| {
            if error.outcome() == crate::error::Outcome::NotApplied {
                for wish in &wishes {
                    self.books.table.remove(wish.claim.owner);
                }
            }
        })?;
        let mut verdicts = Vec::with_capacity(wishes.len());
        for (wish, placed) in wishes.iter().zip(placed) {
            verdicts.push(self.judge(session, wish.claim, &wish.lock, placed).await);
        }
        Ok(verdicts)
    }

    async fn place_one(&self, session: &Session, wish: &Wish<'_>) -> Result<Placed> {
        let client = &session.client;
        for _ in 0..2 {
            session.check_connected()?;
            let sent = self.books.clock.now();
            // All are sent now, and answered in this order.
            let parent = (!self.nodes.is_known(&wish.lock))
                .then(|| client.create(&wish.lock, b"", &self.nodes.of_lock()));
            let creating = client.create(&wish.prefix, &wish.data, &self.nodes.in_line());
            let listing = client.list_children(&wish.lock);
            if let Some(parent) = parent {
                // If it failed for a reason that counts, so does the next one.
                let _ = parent.await;
            }
            let (stat, sequence) = match creating.await {
                Ok(created) => created,
                Err(Zk::NoNode) => {
                    self.nodes.forget(&wish.lock);
                    self.nodes.make_lock(client, &wish.lock).await?;
                    continue;
                }
                Err(error) => return Err(of_request(error)),
            };
            session.proved(sent);
            let children = listing.await.map_err(of_request).map_err(Error::outcome_unknown)?;
            let child = format!("{}{sequence}", &wish.prefix[wish.lock.len() + 1..]);
            let node = Node { child: child.into(), token: card::token(&stat) };
            return Ok(Placed { node, line: self.line(&wish.claim.name, children) });
        }
        Err(of_request(Zk::NoNode))
    }

    async fn place_many(&self, session: &Session, wishes: &[Wish<'_>]) -> Result<Vec<Placed>> {
        let client = &session.client;
        for _ in 0..2 {
            session.check_connected()?;
            let sent = self.books.clock.now();
            let unknown = wishes.iter().filter(|wish| !self.nodes.is_known(&wish.lock));
            let parents: Vec<_> =
                unknown.map(|wish| client.create(&wish.lock, b"", &self.nodes.of_lock())).collect();
            let (mut writer, mut reader) = (client.new_multi_writer(), client.new_multi_reader());
            for wish in wishes {
                writer
                    .add_create(&wish.prefix, &wish.data, &self.nodes.in_line())
                    .map_err(of_request)?;
                reader.add_get_children(&wish.lock).map_err(of_request)?;
            }
            let (creating, listing) = (writer.commit(), reader.commit());
            for parent in parents {
                let _ = parent.await;
            }
            let created = match creating.await {
                Ok(created) => created,
                Err(MultiWriteError::OperationFailed { source: Zk::NoNode, .. }) => {
                    for wish in wishes {
                        self.nodes.forget(&wish.lock);
                        self.nodes.make_lock(client, &wish.lock).await?;
                    }
                    continue;
                }
                Err(error) => return Err(of_request(error.into())),
            };
            session.proved(sent);
            let listed = listing.await.map_err(of_request).map_err(Error::outcome_unknown)?;
            return self.match_up(session, wishes, created, listed).await;
        }
        Err(of_request(Zk::NoNode))
    }

    /// Who stands in which line after a batch. From here on nodes exist: whatever fails has
    /// an unknown outcome.
    async fn match_up(
        &self,
        session: &Session,
        wishes: &[Wish<'_>],
        created: Vec<MultiWriteResult>,
        listed: Vec<MultiReadResult>,
    ) -> Result<Vec<Placed>> {
        let paths: Vec<_> = created
            .into_iter()
            .filter_map(|result| match result {
                MultiWriteResult::Create { path, .. } => Some(path),
                _ => None,
            })
            .collect();
        if paths.len() != wishes.len() || listed.len() != wishes.len() {
            let message = "ZooKeeper did not answer each claim of a batch";
            return Err(Error::new(ErrorKind::Internal, message).outcome_unknown());
        }
        let token = self.token_of_batch(session, &paths).await?;
        let mut placed = Vec::with_capacity(wishes.len());
        for ((wish, path), listed) in wishes.iter().zip(paths).zip(listed) {
            let children = match listed {
                MultiReadResult::Children { children } => children,
                MultiReadResult::Error { err } => return Err(of_request(err).outcome_unknown()),
                _ => Vec::new(),
            };
            let node = Node { child: path[wish.lock.len() + 1..].into(), token };
            placed.push(Placed { node, line: self.line(&wish.claim.name, children) });
        }
        Ok(placed)
    }

    /// The token of all nodes of a batch: they were created by one transaction. Read back,
    /// since before 3.8.2 the answer to a `multi` does not tell (ZOOKEEPER-4026, -4667).
    async fn token_of_batch(&self, session: &Session, paths: &[String]) -> Result<Token> {
        for path in paths {
            match session.client.get_data(path).await {
                Ok((_, stat)) => return Ok(card::token(&stat)),
                // Released by force already: another one tells as well.
                Err(Zk::NoNode) => {}
                Err(error) => return Err(of_request(error).outcome_unknown()),
            }
        }
        let message = "somebody deletes the nodes of locks as soon as they are created";
        Err(Error::new(ErrorKind::Unavailable, message).outcome_unknown())
    }

    /// What a claim with a node in line gets.
    async fn judge(
        &self,
        session: &Arc<Session>,
        claim: &Claim,
        lock: &Arc<str>,
        placed: Placed,
    ) -> Verdict {
        let Placed { node, line } = placed;
        let now = self.books.clock.now();
        let ahead = line.iter().position(|other| *other.child == *node.child);
        self.nodes.remember(lock, ahead != Some(0));
        match ahead {
            Some(0) => match self.grant(session, claim.owner, node, now) {
                Some(grant) => Verdict::Granted(grant),
                None => Verdict::Held(None),
            },
            Some(ahead) if claim.queue => {
                self.books.table.queued(claim.owner, node, ahead, now);
                // Whoever waits here all the time need not be told for whom.
                let told = session.lines.lock().contains_key(lock);
                match line.first().filter(|_| !told) {
                    Some(first) => Verdict::Queued(self.held_by(session, lock, first).await),
                    None => Verdict::Queued(None),
                }
            }
            // Gone already (by force), or not to wait: then out of the line again.
            _ => {
                self.books.table.queued(claim.owner, node, 0, now);
                self.books.table.leaving(claim.owner);
                let leaving = self.take_out(claim.owner);
                match line.first() {
                    Some(first) => {
                        let (by, _) = tokio::join!(self.held_by(session, lock, first), leaving);
                        Verdict::Held(by)
                    }
                    None => {
                        let _ = leaving.await;
                        Verdict::Held(None)
                    }
                }
            }
        }
    }

    /// The lock is this owner's, as far as the session is proved.
    pub(super) fn grant(
        &self,
        session: &Session,
        owner: crate::owner::Owner,
        node: Node,
        now: Moment,
    ) -> Option<crate::backend::Grant> {
        let wall = self.books.clock.wall_micros() / 1_000;
        self.books.table.granted(owner, node, session.proof(), now, wall)
    }

    /// Who stands behind a node, if that is still there.
    async fn held_by(&self, session: &Session, lock: &str, first: &Contender) -> Option<HeldBy> {
        let path = format!("{lock}/{}", first.child);
        let (data, stat) = session.client.get_data(&path).await.ok()?;
        let owner = self.target.layout.owner(&first.child);
        Some(card::read(owner, &data, &stat, self.books.clock.wall()).held_by)
    }
}

fn card(claim: &Claim) -> Card {
    Card { holder: claim.holder.clone(), ttl: claim.ttl, since: None }
}
