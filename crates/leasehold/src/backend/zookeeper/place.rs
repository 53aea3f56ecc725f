//! Putting claims in line: their nodes, and who stands before them. One claim, or many in
//! one transaction.

use std::sync::Arc;

use futures_util::future::Either;
use zookeeper_client::{Error as Zk, MultiReadResult, MultiWriteError, MultiWriteResult};

use super::ZookeeperStore;
use super::card;
use super::error::of_request;
use super::layout::Listing;
use super::line::Line;
use super::nodes::Known;
use super::session::Session;
use super::table::Node;
use crate::backend::Claim;
use crate::error::{Error, ErrorKind, Result};

/// A claim on its way: its lock's node, its node's name but for the number.
pub(super) struct Wish<'a> {
    pub(super) claim: &'a Claim,
    pub(super) lock: Arc<str>,
    pub(super) prefix: String,
    pub(super) data: Vec<u8>,
}

/// What became of it: its node, and who stands in line.
pub(super) struct Placed {
    pub(super) node: Node,
    pub(super) seen: Seen,
}

/// How we know of those in line.
pub(super) enum Seen {
    /// They were read after the node had been created.
    Listed(Listing),
    /// We follow the line already, and are told of our own node as of any other.
    Followed(Arc<Line>),
}

impl ZookeeperStore {
    pub(super) async fn place_one(&self, session: &Session, wish: &Wish<'_>) -> Result<Placed> {
        let client = &session.client;
        for _ in 0..2 {
            session.check_connected()?;
            let sent = self.books.clock.now();
            // All are sent now, and answered in this order.
            let parent = (!self.nodes.is_known(&wish.lock))
                .then(|| client.create(&wish.lock, b"", &self.nodes.of_lock()));
            let creating = client.create(&wish.prefix, &wish.data, &self.nodes.in_line());
            let seeing = match followed(session, wish) {
                Some(line) => Either::Left(line),
                None => Either::Right(client.list_children(&wish.lock)),
            };
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
            let child = format!("{}{sequence}", &wish.prefix[wish.lock.len() + 1..]);
            let node = Node { child: child.into(), token: card::token(&stat) };
            let seen = match seeing {
                Either::Left(line) => Seen::Followed(line),
                Either::Right(listing) => {
                    let children = listing.await.map_err(of_request);
                    let children = children.map_err(Error::outcome_unknown)?;
                    Seen::Listed(self.read(&wish.claim.name, children))
                }
            };
            return Ok(Placed { node, seen });
        }
        Err(of_request(Zk::NoNode))
    }

    pub(super) async fn place_many(
        &self,
        session: &Session,
        wishes: &[Wish<'_>],
    ) -> Result<Vec<Placed>> {
        let client = &session.client;
        let tick = self.paths.tick();
        for _ in 0..2 {
            session.check_connected()?;
            let sent = self.books.clock.now();
            let locks = wishes.iter().map(|wish| (&wish.lock, self.nodes.of_lock()));
            let parents: Vec<_> = locks
                .chain([(&tick, self.nodes.lasting())])
                .filter(|(node, _)| !self.nodes.is_known(node))
                .map(|(node, options)| client.create(node, b"", &options))
                .collect();
            // Only the lines that we do not follow already are read.
            let followed: Vec<_> = wishes.iter().map(|wish| followed(session, wish)).collect();
            let (mut writer, mut reader) = (client.new_multi_writer(), client.new_multi_reader());
            for (wish, followed) in wishes.iter().zip(&followed) {
                writer
                    .add_create(&wish.prefix, &wish.data, &self.nodes.in_line())
                    .map_err(of_request)?;
                if followed.is_none() {
                    reader.add_get_children(&wish.lock).map_err(of_request)?;
                }
            }
            writer.add_set_data(&tick, b"", None).map_err(of_request)?;
            let (creating, listing) = (writer.commit(), reader.commit());
            for parent in parents {
                let _ = parent.await;
            }
            let created = match creating.await {
                Ok(created) => created,
                Err(MultiWriteError::OperationFailed { source: Zk::NoNode, .. }) => {
                    self.nodes.forget(&tick);
                    self.nodes.make(client, &tick, &self.nodes.lasting()).await?;
                    for wish in wishes {
                        self.nodes.forget(&wish.lock);
                        self.nodes.make_lock(client, &wish.lock).await?;
                    }
                    continue;
                }
                Err(error) => return Err(of_request(error.into())),
            };
            session.proved(sent);
            self.nodes.remember(&tick, Known { contested: false, tried: sent });
            let listed = listing.await.map_err(of_request).map_err(Error::outcome_unknown)?;
            return self.match_up(wishes, followed, created, listed);
        }
        Err(of_request(Zk::NoNode))
    }

    /// Who stands in which line after a batch. From here on nodes exist: whatever fails has
    /// an unknown outcome.
    fn match_up(
        &self,
        wishes: &[Wish<'_>],
        followed: Vec<Option<Arc<Line>>>,
        created: Vec<MultiWriteResult>,
        listed: Vec<MultiReadResult>,
    ) -> Result<Vec<Placed>> {
        let mut paths = Vec::with_capacity(wishes.len());
        let mut token = None;
        for result in created {
            match result {
                MultiWriteResult::Create { path, .. } => paths.push(path),
                MultiWriteResult::SetData { stat } => token = Some(card::token_of_write(&stat)),
                _ => {}
            }
        }
        let Some(token) = token.filter(|_| paths.len() == wishes.len()) else {
            return Err(incomplete());
        };
        let mut listed = listed.into_iter();
        let mut placed = Vec::with_capacity(wishes.len());
        for ((wish, path), followed) in wishes.iter().zip(paths).zip(followed) {
            let seen = match followed {
                Some(line) => Seen::Followed(line),
                None => match listed.next() {
                    Some(MultiReadResult::Children { children }) => {
                        Seen::Listed(self.read(&wish.claim.name, children))
                    }
                    Some(MultiReadResult::Error { err }) => {
                        return Err(of_request(err).outcome_unknown());
                    }
                    _ => return Err(incomplete()),
                },
            };
            let node = Node { child: path[wish.lock.len() + 1..].into(), token };
            placed.push(Placed { node, seen });
        }
        Ok(placed)
    }
}

/// The line of a claim's lock, if we see all that happens there. Who does not wait must know
/// for certain, and reads it.
pub(super) fn followed(session: &Session, wish: &Wish<'_>) -> Option<Arc<Line>> {
    wish.claim.queue.then(|| session.followed(&wish.lock)).flatten()
}

fn incomplete() -> Error {
    let message = "ZooKeeper did not answer each claim of a batch";
    Error::new(ErrorKind::Internal, message).outcome_unknown()
}
