//! Items that travel together: all of them where one server has everything, by slot in a
//! cluster.

use std::collections::BTreeMap;
use std::future::Future;

use futures_util::future::join_all;

use super::keys::Keys;
use crate::error::{Error, ErrorKind, Outcome, Result};

/// One item and where it is kept.
pub(super) type Located<T> = (Keys, T);

/// Asks about all items, those of one slot together if slots matter, and puts the answers
/// back in order.
pub(super) async fn by_slot<T, A, F>(
    items: Vec<Located<T>>,
    slots_matter: bool,
    ask: impl Fn(Vec<Located<T>>) -> F,
) -> Result<Vec<A>>
where
    F: Future<Output = Result<Vec<A>>>,
{
    if !slots_matter || items.len() <= 1 {
        return if items.is_empty() { Ok(Vec::new()) } else { ask(items).await };
    }
    Box::pin(each_slot(items, ask)).await
}

async fn each_slot<T, A, F>(
    items: Vec<Located<T>>,
    ask: impl Fn(Vec<Located<T>>) -> F,
) -> Result<Vec<A>>
where
    F: Future<Output = Result<Vec<A>>>,
{
    let count = items.len();
    let mut slots: BTreeMap<u16, (Vec<usize>, Vec<Located<T>>)> = BTreeMap::new();
    for (place, item) in items.into_iter().enumerate() {
        let slot = slots.entry(item.0.slot).or_default();
        slot.0.push(place);
        slot.1.push(item);
    }
    let asking = slots.into_values().map(|(places, items)| {
        let asking = ask(items);
        async move { (places, asking.await) }
    });
    let mut answers: Vec<Option<A>> = (0..count).map(|_| None).collect();
    let mut failures = Vec::new();
    for (places, answered) in join_all(asking).await {
        match answered {
            Ok(some) => places.into_iter().zip(some).for_each(|(at, one)| answers[at] = Some(one)),
            Err(error) => failures.push(error),
        }
    }
    let whole: Option<Vec<A>> = answers.into_iter().collect();
    match whole {
        Some(answers) if failures.is_empty() => Ok(answers),
        _ => Err(partly(failures)),
    }
}

/// Some slots answered and some did not, and there is one answer for all. Where nothing is
/// left in the dark, everybody asks again alone: the scripts give the same owner the same.
fn partly(mut failures: Vec<Error>) -> Error {
    let unknown = failures.iter().position(|error| error.outcome() != Outcome::NotApplied);
    match unknown {
        Some(unknown) => failures.swap_remove(unknown),
        None => Error::new(ErrorKind::Invalid, "a part of the cluster did not do its part"),
    }
}
