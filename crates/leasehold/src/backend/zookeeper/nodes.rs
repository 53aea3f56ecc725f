//! The nodes in a lock's queue: who stands there, which one is ours, and taking it out.

use super::ZookeeperStore;
use super::error::found;
use super::layout::{Contender, Listing};
use super::ledger::{Entry, Node};
use super::payload;
use crate::error::Result;
use crate::holder::HeldBy;
use crate::name::Name;
use crate::owner::Owner;

/// A lock's children. Nodes of the other layout among them are reported, once.
pub(super) fn read(store: &ZookeeperStore, name: &Name, children: Vec<String>) -> Listing {
    let layout = store.target.layout;
    let listing = layout.read(children);
    if !listing.foreign.is_empty() && store.reported.lock().insert(name.clone()) {
        tracing::warn!(lock = %name, layout = layout.as_str(), other = layout.other().as_str(),
            "nodes of another layout are on this lock's path: their clients and ours do not \
             exclude each other; say the same layout= everywhere");
    }
    listing
}

/// Who stands in a lock's queue, as this session's server knows it.
pub(super) async fn list(store: &ZookeeperStore, entry: &Entry) -> Result<Listing> {
    entry.session.check_connected()?;
    let children = found(entry.session.client.list_children(&entry.lock).await)?;
    Ok(read(store, &entry.claim.name, children.unwrap_or_default()))
}

/// Who is first in the queue of a claim's lock, if still there.
pub(super) async fn held_by(
    store: &ZookeeperStore,
    Entry { session, lock, .. }: &Entry,
    first: Option<&Contender>,
) -> Option<HeldBy> {
    let child = &first?.child;
    let (data, stat) = session.client.get_data(&format!("{lock}/{child}")).await.ok()?;
    let owner = store.target.layout.owner(child);
    Some(payload::read(owner, &data, &stat, store.shared.clock.wall()).held_by)
}

/// The node of a claim that got no answer, by the owner in its name. Asked after a write
/// has gone the same way: what was sent before it has been done by then.
pub(super) async fn find(store: &ZookeeperStore, entry: &Entry) -> Result<Option<Node>> {
    let (session, layout) = (&entry.session, store.target.layout);
    session.prove(&entry.lock).await?;
    let Listing { queue, .. } = list(store, entry).await?;
    let ours = queue.iter().find(|other| layout.owner(&other.child) == Some(entry.claim.owner));
    let Some(Contender { child, .. }) = ours else { return Ok(None) };
    let path = format!("{}/{child}", entry.lock);
    match found(session.client.get_data(&path).await)? {
        Some((_, stat)) if stat.ephemeral_owner == session.client.session_id().0 => {
            Ok(Some(Node { child: child.as_str().into(), token: payload::token(&stat) }))
        }
        // An earlier session's: nothing of it is believed.
        Some(_) => session.delete(&path).await.map(|()| None),
        None => Ok(None),
    }
}

/// Deletes an owner's node, if it has one, and forgets the owner. Without an answer the
/// janitor goes on.
pub(super) async fn take_out(store: &ZookeeperStore, owner: Owner) -> Result<()> {
    let Some(entry) = store.shared.entry(owner) else { return Ok(()) };
    if !entry.session.is_over() {
        let known = entry.node().cloned();
        let node = if known.is_some() { known } else { find(store, &entry).await? };
        if let Some(node) = node {
            store.shared.leaving(owner, node.clone());
            entry.session.delete(&format!("{}/{}", entry.lock, node.child)).await?;
        }
    }
    store.shared.remove(owner);
    Ok(())
}
