//! Looking at locks, for people.

use zookeeper_client::{Error as Zk, MultiReadResult};

use super::ZookeeperStore;
use super::card;
use super::error::of_request;
use super::layout::Contender;
use super::session::Session;
use crate::backend::{ForcedInfo, LockInfo};
use crate::error::Result;
use crate::name::Name;

/// How many locks are looked at in one request.
const AT_ONCE: usize = 100;

impl ZookeeperStore {
    pub(super) async fn look_at(&self, name: &Name) -> Result<Option<LockInfo>> {
        let session = self.sessions.reader().await?;
        let client = &session.client;
        let (lock, record) = (self.paths.lock(name), self.paths.record(name));
        // All sent now: the server first catches up with its leader, then answers.
        let (syncing, listing) = (client.sync(&lock), client.list_children(&lock));
        let reading = client.get_data(&record);
        syncing.await.map_err(of_request)?;
        let line = match listing.await {
            Ok(children) => Some(self.read(name, children).line),
            Err(Zk::NoNode) => None,
            Err(error) => return Err(of_request(error)),
        };
        let forced = match reading.await {
            Ok((data, _)) => card::read_record(&data).map(|(_, forced)| forced),
            Err(Zk::NoNode) => None,
            Err(error) => return Err(of_request(error)),
        };
        if line.is_none() && forced.is_none() {
            return Ok(None);
        }
        let info = self.with_heads(&session, vec![(name.clone(), line.unwrap_or_default())]);
        let mut info = info.await?.pop().unwrap_or_else(|| LockInfo::free(name.clone()));
        info.forced = forced;
        Ok(Some(info))
    }

    pub(super) async fn look_at_all(&self, prefix: &str) -> Result<Vec<LockInfo>> {
        let session = self.sessions.reader().await?;
        let client = &session.client;
        let root = self.paths.root();
        let (syncing, listing) = (client.sync(root), client.list_children(root));
        syncing.await.map_err(of_request)?;
        let children = match listing.await {
            Ok(children) => children,
            Err(Zk::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(of_request(error)),
        };
        let mut names: Vec<Name> = children.iter().filter_map(|c| self.paths.name(c)).collect();
        names.retain(|name| name.as_str().starts_with(prefix));
        names.sort();
        let mut infos = Vec::new();
        for names in names.chunks(AT_ONCE) {
            let mut reader = client.new_multi_reader();
            for name in names {
                reader.add_get_children(&self.paths.lock(name)).map_err(of_request)?;
            }
            let lines = reader.commit().await.map_err(of_request)?;
            let lines = names.iter().zip(lines).filter_map(|(name, result)| match result {
                MultiReadResult::Children { children } => {
                    let line = self.read(name, children).line;
                    (!line.is_empty()).then(|| (name.clone(), line))
                }
                _ => None,
            });
            infos.extend(self.with_heads(&session, lines.collect()).await?);
        }
        infos.retain(|info| info.lease.is_some());
        self.add_records(&session, &mut infos).await?;
        Ok(infos)
    }

    /// Reads who is first in each line.
    async fn with_heads(
        &self,
        session: &Session,
        lines: Vec<(Name, Vec<Contender>)>,
    ) -> Result<Vec<LockInfo>> {
        let mut reader = session.client.new_multi_reader();
        for (name, line) in &lines {
            if let Some(first) = line.first() {
                let path = format!("{}/{}", self.paths.lock(name), first.child);
                reader.add_get_data(&path).map_err(of_request)?;
            }
        }
        let mut heads = reader.commit().await.map_err(of_request)?.into_iter();
        let now = self.books.clock.wall();
        let infos = lines.into_iter().map(|(name, line)| {
            let mut info = LockInfo::free(name);
            if let Some(first) = line.first() {
                // If it has gone meanwhile, the next one has not been told yet.
                if let Some(MultiReadResult::Data { data, stat }) = heads.next() {
                    let owner = self.target.layout.owner(&first.child);
                    info.lease = Some(card::read(owner, &data, &stat, now));
                }
                info.waiters = line.len() - 1;
            }
            info
        });
        Ok(infos.collect())
    }

    async fn add_records(&self, session: &Session, infos: &mut [LockInfo]) -> Result<()> {
        for infos in infos.chunks_mut(AT_ONCE) {
            let mut reader = session.client.new_multi_reader();
            for info in infos.iter() {
                reader.add_get_data(&self.paths.record(&info.name)).map_err(of_request)?;
            }
            let records = reader.commit().await.map_err(of_request)?;
            for (info, record) in infos.iter_mut().zip(records) {
                info.forced = forced(record);
            }
        }
        Ok(())
    }
}

fn forced(record: MultiReadResult) -> Option<ForcedInfo> {
    match record {
        MultiReadResult::Data { data, .. } => card::read_record(&data).map(|(_, forced)| forced),
        _ => None,
    }
}
