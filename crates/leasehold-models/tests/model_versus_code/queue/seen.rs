//! What the server keeps of one lock, in the words of the model.

use leasehold_models::queue::node::{Place, Tombstone};
use leasehold_models::queue::{LIVE, OLDEST};
use redis::{Value, cmd};

use super::{TICK, client_of};
use crate::fixture::Fixture;

/// What is there.
#[derive(Debug)]
pub(super) struct Seen {
    /// What the lock's key holds, and for how many ticks.
    pub(super) holder: Option<(String, u8)>,
    pub(super) record: String,
    pub(super) queue: Vec<Place>,
    /// By owner.
    pub(super) tombstones: Vec<Tombstone>,
    /// How many wait, as `inspect` says.
    pub(super) waiting: usize,
    /// The last force-release, as `inspect` says.
    pub(super) forced: [String; 4],
}

/// One answer of `inspect`.
type Inspected = (i64, String, i64, String, usize, String, String, String, String);

impl Seen {
    /// Looks at everything; `ticks` is the present one, by which requests are numbered.
    pub(super) fn look(
        fixture: &mut Fixture,
        keys: &[String; 4],
        tombstones_at: &[(u8, String)],
        ticks: u64,
    ) -> Result<Self, String> {
        let [_, _, queue, _] = keys;
        let answer: Value = fixture.script("INSPECT", keys, &[]);
        let parsed = redis::from_redis_value::<[Inspected; 1]>(answer);
        let [inspected] = parsed.map_err(|error| format!("what inspect says: {error}"))?;
        let (exists, holds, left, record, waiting, token, at, by, why) = inspected;
        let waiters: Vec<String> = fixture.ask(cmd("LRANGE").arg(queue).arg(0).arg(-1));
        let millis = fixture.millis();
        let told = || format!("the queue is {waiters:?}");
        let places: Option<_> = waiters.iter().map(|waiter| place(waiter, millis, ticks)).collect();
        let mut tombstones = Vec::new();
        for (owner, key) in tombstones_at {
            let left: i64 = fixture.ask(cmd("PTTL").arg(key));
            if left > 0 {
                tombstones.push(Tombstone { owner: *owner, left: ticks_in(left as u64) });
            }
        }
        Ok(Self {
            holder: (exists == 1).then(|| (holds, ticks_in(left.max(0) as u64))),
            record,
            queue: places.ok_or_else(told)?,
            tombstones,
            waiting,
            forced: [token, at, by, why],
        })
    }
}

/// How many ticks have begun in so many milliseconds.
fn ticks_in(millis: u64) -> u8 {
    millis.div_ceil(1000 * TICK) as u8
}

/// Who stands there; `None` if a waiter is not what `queue.lua` says it is.
fn place(waiter: &str, millis: u64, ticks: u64) -> Option<Place> {
    let words: Vec<&str> = waiter.split(' ').collect();
    let [owner, seen, number, _ttl, _channel, _holder] = words[..] else { return None };
    let quiet = (millis - seen.parse::<u64>().ok()?) / (1000 * TICK);
    let proof = ticks - number.parse::<u64>().ok()?;
    let waiter = client_of(owner)?;
    let (proof, quiet) = (proof.min(OLDEST.into()) as u8, quiet.min(LIVE.into()) as u8);
    Some(Place { waiter, proof, quiet })
}
