//! Looking at locks, taking one away, and what `doctor` shows.

use std::sync::Arc;

use tokio_postgres::Row;

use super::super::examine::{listening, server};
use super::LeaseStore;
use super::statements::{FORCE, INSPECT, LIST};
use crate::backend::kit::time;
use crate::backend::{Finding, ForcedInfo, LeaseInfo, LockInfo};
use crate::error::Result;
use crate::holder::{HeldBy, Holder};
use crate::loss::Forced;
use crate::name::Name;
use crate::owner::Owner;
use crate::token::Token;

pub(super) async fn inspect(store: Arc<LeaseStore>, name: Name) -> Result<Option<LockInfo>> {
    let rows = store.rest.session().await?.rows(&INSPECT, &[&name.as_str()]).await?;
    Ok(rows.first().and_then(info))
}

pub(super) async fn list(store: Arc<LeaseStore>, prefix: String) -> Result<Vec<LockInfo>> {
    let rows = store.rest.session().await?.rows(&LIST, &[&prefix]).await?;
    Ok(rows.iter().filter_map(info).collect())
}

fn info(row: &Row) -> Option<LockInfo> {
    let name = Name::new(row.get::<_, &str>(0)).ok()?;
    let token = |at| row.get::<_, Option<i64>>(at).map(|token| Token::new(token as u64));
    let owner = row.get::<_, Option<&[u8]>>(1).and_then(|bytes| bytes.try_into().ok());
    let left = time::from_micros(row.get::<_, Option<i64>>(7).unwrap_or(0));
    let lease = owner.filter(|_| !left.is_zero()).map(|owner| {
        let text = |at| row.get::<_, Option<&str>>(at);
        let holder = match (text(3), row.get::<_, Option<i32>>(4), text(5)) {
            (Some(host), Some(pid), Some(label)) => Some(Holder::new(host, pid as u32, label)),
            _ => None,
        };
        let held_by = HeldBy::new(holder, row.get::<_, Option<i64>>(6).map(time::at));
        LeaseInfo::new(Some(Owner::from_bytes(owner)), token(2), held_by, Some(left))
    });
    let forced = row.get::<_, Option<&str>>(9).zip(token(12)).map(|(by, token)| {
        let forced = Forced::new(by, row.get::<_, &str>(10));
        ForcedInfo::new(forced, time::at(row.get(11)), token)
    });
    let waiters = row.get::<_, i64>(8) as usize;
    Some(LockInfo { waiters, forced, ..LockInfo::free(name).held(lease) })
}

pub(super) async fn force_release(
    store: Arc<LeaseStore>,
    name: Name,
    forced: Forced,
) -> Result<Option<Token>> {
    let session = store.rest.session().await?;
    let (name, by, reason) = (name.as_str(), &*forced.by, &*forced.reason);
    let row = session.row(&FORCE, &[&name, &by, &reason]).await?;
    Ok(row.get::<_, Option<i64>>(0).map(|token| Token::new(token as u64)))
}

pub(super) async fn examine(store: Arc<LeaseStore>) -> Result<Vec<Finding>> {
    let mut findings = server(&*store.rest.session().await?).await?;
    findings.push(listening(store.pooled, store.settings.listen.is_some()));
    Ok(findings)
}
