//! `leasehold release`: taking a lock away from its holder, on the record.

use std::fs;

use leasehold::{LeaseInfo, Locks};
use rustix::process::getuid;
use serde::Serialize;

use crate::args::Release;
use crate::config::Config;
use crate::exit::{Failure, NOBODY, USAGE, tell};
use crate::plan::checked;
use crate::store::{Store, refused};
use crate::{formatting, report, screen};

#[derive(Debug, Serialize)]
struct Document {
    lock: String,
    released: bool,
    token: Option<u64>,
    holder: Option<report::HeldBy>,
}

/// Releases a lock by force.
pub(crate) fn release(args: Release, config: &Config) -> Result<u8, Failure> {
    let name = checked(&args.name)?;
    let reason = formatting::printable(args.reason.as_deref().unwrap_or_default().trim());
    if !args.force || reason.is_empty() {
        let message = format!(
            "a lock is released by its holder; to take {name:?} from a holder that is still \
             there, add --force and --reason TEXT, which is recorded"
        );
        return Err(Failure::new(USAGE, message));
    }
    // What the record says of who did it.
    let label = format!("{} with leasehold release", user());
    Store::resolve(args.on, config)?.with(label, async |locks: Locks| {
        let before = locks.inspect(&name).await.map_err(refused)?;
        let token = locks.force_release(&name, reason).await.map_err(refused)?;
        // It may have gone from hand to hand in between.
        let is_it = |lease: &LeaseInfo| token.is_some() && lease.token == token;
        let holder = before.leases.into_iter().find(is_it);
        let holder = holder.and_then(|lease| lease.held_by.holder);
        if args.json {
            screen::print_json(&Document {
                lock: name.to_string(),
                released: token.is_some(),
                token: token.map(|token| token.get()),
                holder: holder.as_ref().map(report::HeldBy::from),
            })?;
        }
        let Some(token) = token else {
            tell(format_args!("nobody holds {name:?}: there is nothing to release"));
            return Ok(NOBODY);
        };
        if !args.json {
            let from = formatting::holder(holder.as_ref());
            screen::print(&format!("released {name:?} by force, token {token}, from {from}\n"))?;
        }
        Ok(0)
    })
}

/// The user's name, as the system knows it: what the environment says may be anything.
fn user() -> String {
    let id = getuid().as_raw().to_string();
    let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
    let name = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)? == id).then(|| name.to_owned())
    });
    name.unwrap_or_else(|| format!("user {id}"))
}
