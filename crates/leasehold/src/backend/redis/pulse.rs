//! The heartbeats of waiters: one task for all of a client's, many in one call.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::Value;
use tokio::time::timeout;

use super::RedisStore;
use super::answer::{items, left, number, text, token};
use super::batch::Located;
use super::claim::millis;
use super::error::{Failure, unexpected};
use super::keys::Companion::{Queue, Record};
use super::script::{BEAT, Call};
use super::waiters::{Waiter, Waiters};
use crate::backend::{Grant, Proof};
use crate::clock::{Clock, Moment};
use crate::error::Result;

/// How many waiters show themselves in one call.
const AT_ONCE: usize = 256;

/// Beats for as long as the store lives.
pub(super) async fn beat(store: Weak<RedisStore>, waiters: Arc<Waiters>, clock: Clock) {
    // A node of a cluster that hangs holds up no heartbeats but those of its own slots.
    let mut under_way = FuturesUnordered::new();
    loop {
        let (due, next) = waiters.due(clock.now());
        if due.is_empty() {
            tokio::select! {
                () = waiters.until_due(next) => {}
                Some(()) = under_way.next() => {}
            }
            continue;
        }
        let Some(store) = store.upgrade() else { return };
        for some in store.together(due) {
            under_way.push(store.clone().show(some));
        }
    }
}

impl RedisStore {
    /// Those who may travel together: all waiters of a client, or those of one slot. (Clients that
    /// share the store have holders of their own, and a call names one.)
    fn together(&self, waiters: Vec<Arc<Waiter>>) -> Vec<Vec<Located<Arc<Waiter>>>> {
        let located = self.locate(waiters, |waiter| &waiter.claim.name);
        let mut groups: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for one in located {
            let slot = if self.route.slots_matter() { one.0.slot } else { 0 };
            let holder = Arc::as_ptr(&one.1.claim.holder);
            groups.entry((slot, holder)).or_default().push(one);
        }
        groups.into_values().collect()
    }

    /// Shows that these still wait. Whoever gets no answer asks again, as a claim that can
    /// be refused: that tells its caller when the store is away for long.
    async fn show(self: Arc<Self>, waiters: Vec<Located<Arc<Waiter>>>) {
        for some in waiters.chunks(AT_ONCE) {
            let shown = self.show_in_slot(some).await;
            for (_, waiter) in some {
                waiter.beaten();
                if shown.is_err() {
                    waiter.ask_again();
                }
            }
        }
    }

    async fn show_in_slot(&self, waiters: &[Located<Arc<Waiter>>]) -> Result<()> {
        let Some((keys, first)) = waiters.first() else { return Ok(()) };
        let limit = self.settings.timeout;
        let late = |_| Failure::silent();
        timeout(limit, self.route.listen(keys.slot)).await.map_err(late)??;
        let mut call = Call::new(&BEAT, keys.slot, 3 * waiters.len());
        for (keys, _) in waiters {
            call.keys(keys, &[Record, Queue]);
        }
        call.arg(self.who(keys.slot, &first.claim.holder));
        let sent = self.waiters.next_number();
        let at = self.clock.now();
        for (_, waiter) in waiters {
            let claim = &waiter.claim;
            call.owner(claim.owner).arg(millis(claim.ttl)).arg(sent).arg(waiter.said());
            waiter.sending(sent, at);
        }
        let answer = timeout(limit, self.route.call(&call)).await.map_err(late)??;
        for ((_, waiter), answer) in waiters.iter().zip(items(answer, waiters.len())?) {
            self.judge_beat(waiter, &answer, sent, at)?;
        }
        Ok(())
    }

    fn judge_beat(&self, waiter: &Waiter, answer: &Value, sent: u64, at: Moment) -> Result<()> {
        match answer {
            Value::Int(granted) => {
                let valid_for = std::time::Duration::from_millis(millis(waiter.claim.ttl));
                let proof = Proof { at, valid_for };
                waiter.granted(Grant { token: token(*granted)?, proof }, sent);
            }
            Value::Array(parts) => match &parts[..] {
                [_, left_for, first, seen] => {
                    let first = number(first)? == 1;
                    let free_in = left(number(left_for)?).filter(|_| first);
                    waiter.seen(text(seen)?, sent, self.clock.now(), free_in);
                }
                // The line was lost, or forgot us.
                _ => waiter.ask_again(),
            },
            _ => return Err(unexpected()),
        }
        Ok(())
    }
}
