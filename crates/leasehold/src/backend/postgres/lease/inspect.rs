//! Looking at locks, without touching them.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio_postgres::Row;

use super::super::wire::Session;
use super::verbs;
use crate::backend::{ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

pub(super) async fn inspect(session: &Session, name: &Name) -> Result<Option<LockInfo>> {
    let rows = session.rows(&verbs::INSPECT, &[&name.as_str()]).await?;
    Ok(rows.first().and_then(info))
}

pub(super) async fn list(session: &Session, prefix: &str) -> Result<Vec<LockInfo>> {
    let rows = session.rows(&verbs::LIST, &[&prefix]).await?;
    Ok(rows.iter().filter_map(info).collect())
}

fn info(row: &Row) -> Option<LockInfo> {
    let name = Name::new(row.get::<_, &str>(0)).ok()?;
    let owner = row.get::<_, Option<&[u8]>>(1).and_then(|bytes| bytes.try_into().ok());
    let left = row.get::<_, Option<i64>>(7).unwrap_or(0);
    let lease = owner.filter(|_| left > 0).map(|owner| {
        let token = row.get::<_, Option<i64>>(2).map(|token| Token::new(token as u64));
        let text = |at: usize| row.get::<_, Option<String>>(at);
        let holder = match (text(3), row.get::<_, Option<i32>>(4), text(5)) {
            (Some(host), Some(pid), Some(label)) => Some(Holder::new(host, pid as u32, label)),
            _ => None,
        };
        let since = row.get::<_, Option<i64>>(6).map(wall);
        let remaining = Duration::from_micros(left as u64);
        let owner = Some(Owner::from_bytes(owner));
        LeaseInfo::new(owner, token, HeldBy::new(holder, since), Some(remaining))
    });
    let forced = row.get::<_, Option<String>>(9).map(|by| {
        let forced = Forced::new(by, row.get::<_, String>(10));
        ForcedInfo::new(forced, wall(row.get(11)), Token::new(row.get::<_, i64>(12) as u64))
    });
    let waiters = row.get::<_, i64>(8) as usize;
    Some(LockInfo { lease, waiters, forced, ..LockInfo::free(name) })
}

/// Microseconds since 1970 as a time.
pub(in super::super) fn wall(micros: i64) -> SystemTime {
    UNIX_EPOCH + Duration::from_micros(u64::try_from(micros).unwrap_or(0))
}
