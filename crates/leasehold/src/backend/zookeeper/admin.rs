//! Looking at locks, for people; and taking a lock away from its holder.

use std::sync::Arc;

use zookeeper_client::{CreateMode, Error as Zk, MultiReadResult};

use super::error::{found, of_request};
use super::layout::Contender;
use super::session::Session;
use super::{ZookeeperStore, nodes, payload};
use crate::backend::{ForcedInfo, LockInfo};
use crate::error::Result;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

pub(super) use super::examine::examine;

/// How many locks are looked at in one request.
const AT_ONCE: usize = 100;
/// How often another holder may come in between.
const ATTEMPTS: usize = 5;

pub(super) async fn inspect(store: Arc<ZookeeperStore>, name: Name) -> Result<Option<LockInfo>> {
    store.explained(look_at(&store, name).await)
}

async fn look_at(store: &ZookeeperStore, name: Name) -> Result<Option<LockInfo>> {
    let session = store.sessions.reader().await?;
    let children = session.children(&store.paths.lock(&name)).await?;
    let exists = children.is_some();
    let queue = nodes::read(store, &name, children.unwrap_or_default()).queue;
    let info = describe(store, &session, vec![(name, queue)]).await?.pop();
    Ok(info.filter(|info| exists || info.forced.is_some()))
}

pub(super) async fn list(store: Arc<ZookeeperStore>, prefix: String) -> Result<Vec<LockInfo>> {
    store.explained(look_at_all(&store, &prefix).await)
}

async fn look_at_all(store: &ZookeeperStore, prefix: &str) -> Result<Vec<LockInfo>> {
    let session = store.sessions.reader().await?;
    let children = session.children(store.paths.root()).await?.unwrap_or_default();
    let mut names: Vec<Name> = children.iter().filter_map(|c| store.paths.name(c)).collect();
    names.retain(|name| name.as_str().starts_with(prefix));
    names.sort();
    let mut infos = Vec::new();
    for names in names.chunks(AT_ONCE) {
        let mut reader = session.client.new_multi_reader();
        for name in names {
            reader.add_get_children(&store.paths.lock(name)).map_err(of_request)?;
        }
        let answers = reader.commit().await.map_err(of_request)?;
        let queues = names.iter().zip(answers).filter_map(|(name, answer)| {
            let MultiReadResult::Children { children } = answer else { return None };
            let queue = nodes::read(store, name, children).queue;
            (!queue.is_empty()).then(|| (name.clone(), queue))
        });
        infos.extend(describe(store, &session, queues.collect()).await?);
    }
    infos.retain(|info| info.lease().is_some());
    Ok(infos)
}

/// Reads who is first in each queue, and the record of the last force-release.
async fn describe(
    store: &ZookeeperStore,
    session: &Session,
    queues: Vec<(Name, Vec<Contender>)>,
) -> Result<Vec<LockInfo>> {
    let mut reader = session.client.new_multi_reader();
    for (name, queue) in &queues {
        if let Some(first) = queue.first() {
            let path = format!("{}/{}", store.paths.lock(name), first.child);
            reader.add_get_data(&path).map_err(of_request)?;
        }
        reader.add_get_data(&store.paths.record(name)).map_err(of_request)?;
    }
    let mut answers = reader.commit().await.map_err(of_request)?.into_iter();
    let now = store.shared.clock.wall();
    let infos = queues.into_iter().map(|(name, queue)| {
        let mut info = LockInfo::free(name);
        if let Some(first) = queue.first() {
            // If it has gone meanwhile, the next one has not been told yet.
            if let Some(MultiReadResult::Data { data, stat }) = answers.next() {
                let owner = store.target.layout.owner(&first.child);
                info.leases.push(payload::read(owner, &data, &stat, now));
            }
            info.waiters = queue.len() - 1;
        }
        if let Some(MultiReadResult::Data { data, .. }) = answers.next() {
            info.forced = payload::read_record(&data).map(|(_, forced)| forced);
        }
        info
    });
    Ok(infos.collect())
}

pub(super) async fn force_release(
    store: Arc<ZookeeperStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    store.explained(force(&store, name, forced).await)
}

/// The holder's node goes and the record is written in one transaction, which also rings the
/// bell that all clients hear.
async fn force(store: &ZookeeperStore, name: Name, forced: Forced) -> Result<Option<Token>> {
    let session = store.sessions.reader().await?;
    let (client, paths) = (&session.client, &store.paths);
    let (lock, bell, record) = (paths.lock(&name), paths.bell(), paths.record(&name));
    for _ in 0..ATTEMPTS {
        session.prove(&lock).await?;
        let children = found(client.list_children(&lock).await)?.unwrap_or_default();
        let queue = nodes::read(store, &name, children).queue;
        let Some(first) = queue.first() else { return Ok(None) };
        let path = format!("{lock}/{}", first.child);
        let Some((_, stat)) = found(client.get_data(&path).await)? else { continue };
        for path in [&bell, &record] {
            paths.make(client, path, CreateMode::Persistent).await?;
        }
        let token = payload::token(&stat);
        let info = ForcedInfo::new(forced.clone(), store.shared.clock.wall(), token);
        let written = payload::record(&name, &info);
        let mut writer = client.new_multi_writer();
        writer.add_delete(&path, None).map_err(of_request)?;
        writer.add_set_data(&record, &written, None).map_err(of_request)?;
        writer.add_set_data(&bell, &written, None).map_err(of_request)?;
        // Gone just now? Then the next holder is meant as well.
        if found(writer.commit().await.map_err(Zk::from))?.is_some() {
            return Ok(Some(token));
        }
    }
    Err(of_request(Zk::NoNode))
}
