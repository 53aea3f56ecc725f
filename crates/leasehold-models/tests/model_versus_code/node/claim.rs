//! Claims: what a node is asked, and what the model says it must answer.

use leasehold_models::quorum::node::{Answer, Order};
use redis::Value;

use super::names::{holder, id, text};
use super::{FURTHEST, LOCK, Mark, NodeComparison, QUEUE, RECORD, Sender, in_short, int, locks};
use crate::episode::same;
use crate::fixture::words;

impl NodeComparison<'_> {
    pub(super) fn claim(
        &mut self,
        by: Sender,
        attempt: u8,
        both: bool,
        ttl: u64,
        queue: bool,
        guess: Option<Mark>,
    ) -> Result<(), String> {
        let (owner, channel) = (text(by.client, attempt), self.channel(by.client));
        let mut args = vec![format!("{channel} {}", holder(by.client))];
        let keys = self.keys_by_kind(both, &[RECORD, LOCK, QUEUE]);
        let guesses: Vec<u64> = locks(both).map(|at| self.resolve(guess, at)).collect();
        // What all have in common is said once, or for each.
        let terms = words([&ttl, &u8::from(queue)]);
        let once = attempt.is_multiple_of(2);
        args.extend(if once { terms.clone() } else { vec![String::new(); 2] });
        for guess in &guesses {
            args.extend(words([&owner, guess]));
        }
        for _ in guesses.iter().filter(|_| !once) {
            args.extend_from_slice(&terms);
        }
        let Some(seen) = self.ask(by, "CLAIM", keys, args)? else { return Ok(()) };
        let mut expected = Vec::new();
        for (at, guess) in locks(both).zip(guesses) {
            expected.push(self.expect_claim(by, attempt, at, ttl, queue, guess));
        }
        same("the answer to the claim", &in_short(Value::Array(expected)), &in_short(seen))
    }

    fn expect_claim(
        &mut self,
        by: Sender,
        attempt: u8,
        at: usize,
        ttl: u64,
        queue: bool,
        guess: u64,
    ) -> Value {
        self.forget_expired();
        let (millis, micros) = (self.fixture.millis(), self.fixture.micros());
        let channel = self.channel(by.client);
        let clock = int(micros);
        if self.locks[at].has_tombstone(by.client, millis) {
            self.tally.note("claim: tombstone");
            let nobody = Value::BulkString(Vec::new());
            let last = int(self.locks[at].node.token);
            return Value::Array(vec![
                Value::Int(0),
                last,
                clock,
                Value::Int(-1),
                nobody.clone(),
                nobody,
            ]);
        }
        let owner = id(by.client, attempt);
        let wanted = Some(guess).filter(|guess| (1..=micros + FURTHEST).contains(guess));
        let before = self.locks[at].node;
        match self.order(by, at, Order::Claim { owner, guess: wanted }) {
            Answer::Granted { last, stored } => {
                let lock = &mut self.locks[at];
                lock.take(owner, millis + ttl);
                lock.wait_no_more(by.client);
                self.marker.raise(ttl, 0);
                if lock.node.token != before.token {
                    self.marker.raise(ttl, lock.node.token);
                    lock.remember(micros, ttl, format!("{channel} {}", holder(by.client)));
                }
                if stored {
                    Value::Int(1)
                } else {
                    Value::Array(vec![Value::Int(1), int(last), clock])
                }
            }
            Answer::Held { last } => {
                let lock = &mut self.locks[at];
                if queue {
                    lock.wait(by.client, millis, channel);
                }
                let (held, record) = (lock.holder_text(), lock.record_text());
                Value::Array(vec![
                    Value::Int(0),
                    int(last),
                    clock,
                    int(lock.expires - millis),
                    Value::BulkString(held.into_bytes()),
                    Value::BulkString(record.into_bytes()),
                ])
            }
            answer => panic!("no answer to a claim: {answer:?}"),
        }
    }
}
