//! Taking a lock away from its holder: its node goes and the record is written in one
//! transaction, which also rings the bell that all clients hear.

use zookeeper_client::{Error as Zk, MultiWriteError};

use super::ZookeeperStore;
use super::card;
use super::error::of_request;
use crate::backend::ForcedInfo;
use crate::error::Result;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How often another holder may come in between.
const ATTEMPTS: usize = 5;

impl ZookeeperStore {
    pub(super) async fn force(&self, name: Name, forced: Forced) -> Result<Option<Token>> {
        let session = self.sessions.reader().await?;
        let client = &session.client;
        let (lock, bell, record) =
            (self.paths.lock(&name), self.paths.bell(), self.paths.record(&name));
        for _ in 0..ATTEMPTS {
            session.prove(&lock).await?;
            let listing = self.list(&session, &lock, &name).await?;
            let Some(first) = listing.line.first() else { return Ok(None) };
            let path = format!("{lock}/{}", first.child);
            let token = match client.get_data(&path).await {
                Ok((_, stat)) => card::token(&stat),
                Err(Zk::NoNode) => continue,
                Err(error) => return Err(of_request(error)),
            };
            for path in [&bell, &record] {
                self.nodes.make(client, path, &self.nodes.lasting()).await?;
            }
            let info = ForcedInfo::new(forced.clone(), self.books.clock.wall(), token);
            let written = card::record(&name, &info);
            let mut writer = client.new_multi_writer();
            writer.add_delete(&path, None).map_err(of_request)?;
            writer.add_set_data(&record, &written, None).map_err(of_request)?;
            writer.add_set_data(&bell, &written, None).map_err(of_request)?;
            match writer.commit().await {
                Ok(_) => return Ok(Some(token)),
                // Gone just now: whoever holds it next is meant as well.
                Err(MultiWriteError::OperationFailed { source: Zk::NoNode, .. }) => {}
                Err(error) => return Err(of_request(error.into())),
            }
        }
        Err(of_request(Zk::NoNode))
    }
}
