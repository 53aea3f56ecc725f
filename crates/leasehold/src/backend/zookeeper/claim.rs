//! Taking locks: a node in line, and a look at who stands before it, in one flight.
//!
//! What is read after our own node was created, on the same session, shows everyone who
//! came before us, also on a server that is behind: to be first there is to have the lock.

use std::sync::Arc;

use zookeeper_client::Error as Zk;

use super::ZookeeperStore;
use super::card::Card;
use super::error::of_request;
use super::place::{Placed, Seen, Wish, followed};
use super::session::Session;
use super::table::{Entry, Stand};
use crate::backend::{Claim, Verdict};
use crate::error::{Error, ErrorKind, Result};

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
        let listing = self.read(&claim.name, children);
        self.refuse_mixed(&lock, &listing)?;
        match listing.line.first() {
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
        let listing = self.list(&entry.session, &entry.lock, &claim.name).await?;
        if matches!(entry.stand, Stand::Waiting { .. }) {
            // It keeps its place: the foreign node may go.
            self.books.table.attend(owner, 0, self.books.clock.now());
            self.refuse_mixed(&entry.lock, &listing)?;
        }
        match node.filter(|node| listing.ahead_of(&node.child).is_some()) {
            None => {
                self.books.table.remove(owner);
                Ok(None)
            }
            Some(node) => {
                if entry.session.is_proof_old(entry.ttl()) {
                    entry.session.prove(&entry.lock).await?;
                }
                let placed = Placed { node, seen: Seen::Listed(listing) };
                self.judge(&entry.session, claim, &entry.lock, placed).await.map(Some)
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
        // Before anything is written down or sent.
        if let [wish] = wishes.as_slice()
            && let Some(line) = followed(session, wish)
        {
            line.gather().await;
        }
        let now = self.books.clock.now();
        for wish in &wishes {
            // Barred meanwhile, or while its session was opened: it must not come now.
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
        let mut refused = None;
        for (wish, placed) in wishes.iter().zip(placed) {
            match self.judge(session, wish.claim, &wish.lock, placed).await {
                Ok(verdict) => verdicts.push(verdict),
                Err(error) => refused = Some(error),
            }
        }
        // Each is then asked for again alone, and the others keep what they got here.
        refused.map_or(Ok(verdicts), Err)
    }
}

fn card(claim: &Claim) -> Card {
    Card { holder: claim.holder.clone(), ttl: claim.ttl, since: None }
}
