//! Taking a lock away: its holder's session is ended, and with it *all* its locks.

use std::sync::Arc;
use std::time::Duration;

use super::super::key::Key;
use super::{SessionStore, verbs};
use crate::error::{Error, ErrorKind, Result};
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How long a backend may take to end.
const PATIENCE: Duration = Duration::from_millis(1_500);
const PAUSE: Duration = Duration::from_millis(10);

impl SessionStore {
    pub(super) async fn force(
        self: &Arc<Self>,
        name: &Name,
        forced: &Forced,
    ) -> Result<Option<Token>> {
        let key = Key::of(name)?;
        let seen = self.seen(key).await?;
        let Some(holder) = seen.iter().find(|seen| seen.granted) else { return Ok(None) };
        let session = self.aside.session().await?;
        let backend = holder.backend;
        let locks: i64 = session.row(&verbs::COUNT, &[&backend]).await?.get(0);
        if locks > 1 && !self.settings.force_sessions {
            let message = format!(
                "its holder's session (backend {backend}) has {} more locks, which would end with \
                 it; to do it all the same, connect with force=session in the URL",
                locks - 1
            );
            return Err(Error::new(ErrorKind::Refused, message));
        }
        // A foreign holder has no token: zero stands for it in the record.
        let token = self.lease(&seen).and_then(|lease| lease.token).unwrap_or(Token::new(0));
        let (lock, number) = (name.as_str(), token.get() as i64);
        let (by, reason) = (&*forced.by, &*forced.reason);
        // First the record, so that the holder finds out why.
        session.rows(&verbs::RECORD, &[&lock, &number, &by, &reason]).await?;
        session.rows(&verbs::TERMINATE, &[&backend]).await?;
        let until = self.clock.now() + PATIENCE;
        loop {
            let left: i64 = session.row(&verbs::COUNT, &[&backend]).await?.get(0);
            if left == 0 {
                return Ok(Some(token));
            }
            if self.clock.now() >= until {
                let message = format!("backend {backend} was told to end, but still has its locks");
                return Err(Error::new(ErrorKind::Unavailable, message).outcome_unknown());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
