//! What became of a claim that got no answer, and out of the line again.

use std::time::Duration;

use zookeeper_client::Error as Zk;

use super::ZookeeperStore;
use super::card;
use super::error::{mixed, of_request};
use super::layout::{Contender, Listing};
use super::session::Session;
use super::table::{Entry, Node, Stand};
use crate::backend::{Claim, Grant};
use crate::error::Result;
use crate::name::Name;
use crate::owner::Owner;

/// How long to wait for a connection that broke: less than anybody waits for an answer.
const A_WHILE: Duration = Duration::from_secs(1);

impl ZookeeperStore {
    /// The grant if the lock is this owner's; otherwise its node is gone afterwards, and
    /// the owner barred.
    pub(super) async fn settle_one(&self, claim: &Claim) -> Result<Option<Grant>> {
        let (owner, table) = (claim.owner, &self.books.table);
        let now = self.books.clock.now();
        if let Some(entry) = table.get(owner).filter(|entry| !entry.session.is_over()) {
            // Whoever asks does so a few times only.
            let _ = entry.session.wait_connected(A_WHILE).await;
            match &entry.stand {
                Stand::Held { node, proof, until } if *until > now => {
                    return Ok(Some(Grant { token: node.token, proof: *proof }));
                }
                Stand::Asked { .. } => {
                    if let Some(node) = self.find(&entry, owner).await? {
                        table.queued(owner, node.clone(), 0, now);
                        let seen = self.list(&entry.session, &entry.lock, &claim.name).await?;
                        if seen.foreign.is_empty() && seen.ahead_of(&node.child) == Some(0) {
                            return Ok(self.grant(&entry.session, owner, node, now));
                        }
                    }
                    // It may still be on its way, on a connection that was cut.
                    entry.session.expect_strangers();
                }
                _ => {}
            }
        }
        // Before its node goes: nothing must come between.
        table.bar(owner, claim.ttl, now);
        self.take_out(owner).await?;
        Ok(None)
    }

    /// Deletes an owner's node, if it has one, and forgets the owner. Without an answer the
    /// janitor goes on.
    pub(super) async fn take_out(&self, owner: Owner) -> Result<()> {
        let table = &self.books.table;
        let Some(entry) = table.get(owner) else { return Ok(()) };
        if entry.session.is_over() {
            table.remove(owner);
            return Ok(());
        }
        let path = match entry.path() {
            Some(path) => {
                table.leaving(owner);
                Some(path)
            }
            None => {
                let found = self.find(&entry, owner).await?;
                found.map(|node| format!("{}/{}", entry.lock, node.child))
            }
        };
        if let Some(path) = path {
            entry.session.delete(&path).await?;
        }
        table.remove(owner);
        Ok(())
    }

    /// The node of a claim that got no answer, by the owner in its name. Asked after a write
    /// has gone the same way: what was sent before it has been done by then.
    pub(super) async fn find(&self, entry: &Entry, owner: Owner) -> Result<Option<Node>> {
        let session = &entry.session;
        session.prove(&entry.lock).await?;
        let Listing { line, .. } = self.list(session, &entry.lock, &entry.name).await?;
        let layout = self.target.layout;
        let ours = line.iter().find(|other| layout.owner(&other.child) == Some(owner));
        let Some(Contender { child, .. }) = ours else { return Ok(None) };
        let path = format!("{}/{child}", entry.lock);
        match session.client.get_data(&path).await {
            Ok((_, stat)) if stat.ephemeral_owner == session.id() => {
                Ok(Some(Node { child: child.as_str().into(), token: card::token(&stat) }))
            }
            // An earlier session's: nothing of it is believed.
            Ok(_) => session.delete(&path).await.map(|_| None),
            Err(Zk::NoNode) => Ok(None),
            Err(error) => Err(of_request(error)),
        }
    }

    /// Who stands in a lock's line, as this session's server knows it.
    pub(super) async fn list(&self, session: &Session, lock: &str, name: &Name) -> Result<Listing> {
        session.check_connected()?;
        match session.client.list_children(lock).await {
            Ok(children) => Ok(self.read(name, children)),
            Err(Zk::NoNode) => Ok(Listing::default()),
            Err(error) => Err(of_request(error)),
        }
    }

    /// A lock's children. Nodes of the other layout among them are reported, once.
    pub(super) fn read(&self, name: &Name, children: Vec<String>) -> Listing {
        let layout = self.target.layout;
        let listing = layout.read(children);
        if !listing.foreign.is_empty() && self.is_news(name) {
            tracing::warn!(lock = %name, layout = layout.as_str(), other = layout.other().as_str(),
                "nodes of another layout are on this lock's path: their clients and ours do not \
                 exclude each other; say the same layout= everywhere");
        }
        listing
    }

    /// Refuses a lock with nodes of the other layout. Counting them would not be enough: their
    /// clients do not count ours.
    pub(super) fn refuse_mixed(&self, lock: &str, listing: &Listing) -> Result<()> {
        match listing.foreign.first() {
            Some(foreign) => Err(mixed(lock, foreign, self.target.layout)),
            None => Ok(()),
        }
    }
}
