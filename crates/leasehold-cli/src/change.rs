//! What happened to a lock between two looks at it.

use std::time::SystemTime;

use leasehold::{ForcedInfo, LeaseInfo, LockInfo};
use serde::Serialize;

use crate::{formatting, report};

/// Something that happened to a lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Change<'a> {
    info: &'a LockInfo,
    kind: Kind<'a>,
}

#[derive(Debug, PartialEq, Eq)]
enum Kind<'a> {
    /// Nobody holds it, at the first look.
    Free,
    /// Someone holds it, at the first look.
    Held(&'a LeaseInfo),
    Acquired(&'a LeaseInfo),
    /// Given back, or expired: that cannot be told apart from here.
    Released(&'a LeaseInfo),
    Forced(&'a ForcedInfo),
    Waiters,
}

/// What `--json` prints of it.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    at: String,
    event: &'static str,
    lock: String,
    holder: Option<report::HeldBy>,
    token: Option<u64>,
    waiters: usize,
    by: Option<String>,
    reason: Option<String>,
}

/// What happened since `before`: `None` at the first look ever, `Some(None)` for a lock
/// that was neither held nor waited for at the last.
pub(crate) fn changes<'a>(
    before: Option<Option<&'a LockInfo>>,
    info: &'a LockInfo,
) -> Vec<Change<'a>> {
    let mut kinds = Vec::new();
    let lease = info.lease();
    let Some(before) = before else {
        kinds.push(lease.map_or(Kind::Free, Kind::Held));
        if info.waiters > 0 {
            kinds.push(Kind::Waiters);
        }
        return kinds.into_iter().map(|kind| Change { info, kind }).collect();
    };
    let forced = info.forced.as_ref();
    // A record of a lock that was not looked at before may be old.
    let forced = forced.filter(|_| before.is_some_and(|before| before.forced != info.forced));
    kinds.extend(forced.map(Kind::Forced));
    let ended = before.and_then(|before| before.lease());
    let same = |one: &LeaseInfo, two: &LeaseInfo| (one.token, one.owner) == (two.token, two.owner);
    if let Some(ended) = ended
        && !lease.is_some_and(|lease| same(lease, ended))
        && forced.map(|record| record.token) != ended.token
    {
        kinds.push(Kind::Released(ended));
    }
    let begun = lease.filter(|lease| !ended.is_some_and(|ended| same(lease, ended)));
    kinds.extend(begun.map(Kind::Acquired));
    if before.map_or(0, |before| before.waiters) != info.waiters {
        kinds.push(Kind::Waiters);
    }
    kinds.into_iter().map(|kind| Change { info, kind }).collect()
}

impl Change<'_> {
    /// A line for people.
    pub(crate) fn line(&self, at: SystemTime) -> String {
        let who = |lease: &LeaseInfo| formatting::holder(lease.held_by.holder.as_ref());
        let token = |lease: &LeaseInfo| lease.token.map_or("-".to_owned(), |t| t.to_string());
        let what = match &self.kind {
            Kind::Free => "is free".to_owned(),
            Kind::Held(lease) => {
                let by = formatting::held_by(Some(&lease.held_by));
                format!("is held by {by}, token {}", token(lease))
            }
            Kind::Acquired(lease) => {
                format!("acquired by {}, token {}", who(lease), token(lease))
            }
            Kind::Released(lease) => {
                format!("released or expired, was {}, token {}", who(lease), token(lease))
            }
            Kind::Forced(record) => {
                let (by, reason) = (&record.forced.by, &record.forced.reason);
                let (by, reason) = (formatting::printable(by), formatting::printable(reason));
                format!("released by force, token {}, by {by}: {reason}", record.token)
            }
            Kind::Waiters => match self.info.waiters {
                0 => "no more waiters".to_owned(),
                1 => "1 waiter".to_owned(),
                waiters => format!("{waiters} waiters"),
            },
        };
        format!(
            "{} {} {what}\n",
            formatting::stamp(at),
            formatting::printable(self.info.name.as_str())
        )
    }

    /// A record for programs.
    pub(crate) fn report(&self, at: SystemTime) -> Report {
        let (event, lease, record) = match self.kind {
            Kind::Free => ("free", None, None),
            Kind::Held(lease) => ("held", Some(lease), None),
            Kind::Acquired(lease) => ("acquired", Some(lease), None),
            Kind::Released(lease) => ("released", Some(lease), None),
            Kind::Forced(record) => ("forced", None, Some(record)),
            Kind::Waiters => ("waiters", None, None),
        };
        let token = lease.and_then(|lease| lease.token).or(record.map(|record| record.token));
        Report {
            at: formatting::stamp(at),
            event,
            lock: self.info.name.to_string(),
            holder: lease.and_then(|lease| Some(lease.held_by.holder.as_ref()?.into())),
            token: token.map(|token| token.get()),
            waiters: self.info.waiters,
            by: record.map(|record| record.forced.by.clone()),
            reason: record.map(|record| record.forced.reason.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::UNIX_EPOCH;

    use leasehold::{Forced, HeldBy, Holder, Name, Token};

    use super::*;

    fn info(token: Option<u64>, waiters: usize, forced: Option<u64>) -> LockInfo {
        let mut info = LockInfo::free(Name::new("x").unwrap());
        let by = HeldBy::new(Some(Holder::new("here", 7, "job")), None);
        info.leases
            .extend(token.map(|token| LeaseInfo::new(None, Some(Token::new(token)), by, None)));
        info.waiters = waiters;
        info.forced = forced.map(|token| {
            ForcedInfo::new(Forced::new("ada", "hangs"), UNIX_EPOCH, Token::new(token))
        });
        info
    }

    fn events(before: Option<Option<&LockInfo>>, after: &LockInfo) -> Vec<&'static str> {
        let changes = changes(before, after);
        changes.iter().map(|change| change.report(UNIX_EPOCH).event).collect()
    }

    #[test]
    fn the_first_look_tells_how_things_are() {
        assert_eq!(events(None, &info(None, 0, Some(1))), ["free"]);
        assert_eq!(events(None, &info(Some(2), 3, None)), ["held", "waiters"]);
    }

    #[test]
    fn later_looks_tell_what_changed() {
        let (free, held) = (info(None, 0, None), info(Some(1), 0, None));
        assert!(events(Some(Some(&held)), &held).is_empty());
        assert_eq!(events(Some(Some(&free)), &held), ["acquired"]);
        assert_eq!(events(Some(None), &held), ["acquired"]);
        assert_eq!(events(Some(Some(&held)), &free), ["released"]);
        assert_eq!(events(Some(Some(&held)), &info(Some(2), 0, None)), ["released", "acquired"]);
        assert_eq!(events(Some(Some(&held)), &info(Some(1), 2, None)), ["waiters"]);
    }

    #[test]
    fn a_release_by_force_is_told_once_and_as_such() {
        let (held, forced) = (info(Some(1), 0, None), info(None, 0, Some(1)));
        assert_eq!(events(Some(Some(&held)), &forced), ["forced"]);
        assert_eq!(events(Some(Some(&held)), &info(Some(2), 0, Some(1))), ["forced", "acquired"]);
        assert!(events(Some(Some(&forced)), &forced).is_empty());
        assert_eq!(events(Some(None), &info(Some(2), 0, Some(1))), ["acquired"], "an old record");
    }

    #[test]
    fn a_line_says_who_and_which_token() {
        let (free, held) = (info(None, 0, None), info(Some(41), 0, None));
        let line = changes(Some(Some(&free)), &held)[0].line(UNIX_EPOCH);
        assert_eq!(line, "1970-01-01T00:00:00Z x acquired by job (pid 7 on here), token 41\n");
    }
}
