//! Taking a lock away from its holder.

use std::time::Duration;

use redis::Value;

use super::RedisStore;
use super::answer::token;
use super::claim::millis;
use super::error::unexpected;
use super::keys::Companion::{Forced as ForcedKey, Queue, Record};
use super::script::{Call, FORCE};
use crate::error::Result;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

/// How long it is remembered who did it, and why.
const REMEMBERED: Duration = Duration::from_secs(24 * 60 * 60);

impl RedisStore {
    pub(super) async fn force(&self, name: Name, forced: Forced) -> Result<Option<Token>> {
        let keys = self.keys(&name);
        keys.check()?;
        let mut call = Call::new(&FORCE, keys.slot, 4);
        call.keys(&keys, &[Record, Queue, ForcedKey]);
        call.arg(forced.by).arg(forced.reason).arg(millis(REMEMBERED));
        match self.route.call(&call).await? {
            Value::Nil => Ok(None),
            Value::Int(ended) => token(ended).map(Some),
            _ => Err(unexpected()),
        }
    }
}
