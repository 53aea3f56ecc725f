//! Holds: proving, extending and giving back what is held.

use std::sync::Arc;
use std::time::Duration;

use super::Companion::{Forced as ForcedKey, Record};
use super::attempt::releasing;
use super::script::RENEW;
use super::votes::Answers;
use super::{Call, RedlockStore, Value, millis, text};
use crate::backend::{Hint, Hold, Proof, Release, Renewal};
use crate::error::Result;
use crate::loss::{Forced, LossReason};

pub(super) async fn renew(store: Arc<RedlockStore>, holds: Vec<Hold>) -> Result<Vec<Renewal>> {
    let call = || {
        let mut call = store.call(&RENEW, 3 * holds.len());
        for hold in &holds {
            call.keys(&store.keys(&hold.name), &[Record, ForcedKey]);
        }
        call.arg(store.expected());
        for hold in &holds {
            call.arg(hold.owner).arg(hold.token).arg(millis(hold.ttl));
        }
        call
    };
    let at = store.clock.now();
    let answers = decide(&store, &holds, call).await;
    let renewals = holds.iter().enumerate().map(|(item, hold)| {
        if !answers.outcome(item).ok_or_else(|| answers.no_majority())? {
            return Ok(Renewal::NotYours(reason(&answers, item)));
        }
        let valid_for = Duration::from_millis(millis(hold.ttl));
        store.ledger.renew(hold.owner, at + valid_for + valid_for);
        Ok(Renewal::Renewed(Proof { at, valid_for }))
    });
    renewals.collect()
}

pub(super) async fn release(store: Arc<RedlockStore>, holds: Vec<Hold>) -> Result<Vec<Release>> {
    let call = || {
        let keys: Vec<_> = holds.iter().map(|hold| store.keys(&hold.name)).collect();
        let mut call = releasing(&store, keys.iter(), true);
        for hold in &holds {
            call.arg(hold.owner);
        }
        call
    };
    // From now on no late answer to its claim counts.
    for hold in &holds {
        store.ledger.forget(hold.owner);
    }
    let answers = decide(&store, &holds, call).await;
    let releases = (0..holds.len()).map(|item| match answers.outcome(item) {
        Some(true) => Ok(Release::Released),
        Some(false) => Ok(Release::NotHeld),
        None => Err(answers.no_majority()),
    });
    releases.collect()
}

pub(super) async fn hint(store: Arc<RedlockStore>) -> Result<Hint> {
    Ok(store.hints.next().await)
}

/// Asks the nodes until it is known of every hold whether they did it.
async fn decide<'a>(
    store: &'a RedlockStore,
    holds: &[Hold],
    call: impl Fn() -> Call,
) -> Answers<'a> {
    let limit = store.limit(holds.iter().map(|hold| hold.ttl));
    let decided =
        |answers: &Answers<'_>| (0..holds.len()).all(|item| answers.outcome(item).is_some());
    store.consult(call, holds.len()..=holds.len(), limit, decided).await
}

/// Why a lease is gone: whoever used force left a note where it was held.
fn reason(answers: &Answers<'_>, item: usize) -> LossReason {
    let said = || answers.given.iter().filter_map(move |given| given.get(item));
    let forced = said().find_map(|answer| match answer {
        Value::Array(parts) => match &parts[..] {
            [by, reason] => Some(Forced::new(text(by).ok()?, text(reason).ok()?)),
            _ => None,
        },
        _ => None,
    });
    match forced {
        Some(forced) => LossReason::Forced(forced),
        None if said().any(|answer| *answer == Value::Int(2)) => LossReason::Taken,
        None => LossReason::Expired,
    }
}
