//! What the server keeps of one lock, in the words of the model.

use std::collections::BTreeMap;

use leasehold_lab::line::node::{Bar, Place};
use leasehold_lab::line::{LIVE, OLDEST};
use redis::{Value, cmd};

use super::{TICK, client_of};
use crate::world::World;

/// What is there.
#[derive(Debug)]
pub(super) struct Seen {
    /// What the lock's key holds, and for how many ticks.
    pub(super) holder: Option<(String, u8)>,
    pub(super) record: String,
    pub(super) line: Vec<Place>,
    /// By owner.
    pub(super) barred: Vec<Bar>,
    /// How many wait, as `inspect` says.
    pub(super) waiting: usize,
    /// The last force-release, as `inspect` says.
    pub(super) forced: [String; 4],
}

/// One answer of `inspect`.
type Inspected = (i64, String, i64, String, usize, String, String, String, String);

impl Seen {
    /// Looks at everything; `ticks` is the present one, by which requests are numbered.
    pub(super) fn look(world: &mut World, keys: &[String; 4], ticks: u64) -> Result<Self, String> {
        let [_, _, line, _] = keys;
        let answer: Value = world.script("INSPECT", keys, &[]);
        let parsed = redis::from_redis_value::<[Inspected; 1]>(answer);
        let [inspected] = parsed.map_err(|error| format!("what inspect says: {error}"))?;
        let (exists, holds, left, record, waiting, token, at, by, why) = inspected;
        let fields: BTreeMap<String, String> = world.ask(cmd("HGETALL").arg(line));
        let millis = world.millis();
        let told = format!("the line is {fields:?}");
        let places = places(&fields, millis, ticks).ok_or_else(|| told.clone())?;
        Ok(Self {
            holder: (exists == 1).then(|| (holds, ticks_in(left.max(0) as u64))),
            record,
            line: places,
            barred: bars(&fields, millis).ok_or(told)?,
            waiting,
            forced: [token, at, by, why],
        })
    }
}

/// How many ticks have begun in so many milliseconds.
fn ticks_in(millis: u64) -> u8 {
    millis.div_ceil(1000 * TICK) as u8
}

/// Who stands in line, in order; `None` if the line is not what `line.lua` says it is.
fn places(fields: &BTreeMap<String, String>, millis: u64, ticks: u64) -> Option<Vec<Place>> {
    let mut line = BTreeMap::new();
    for (field, value) in fields {
        // Places are short numbers; owners, which lead to them, have 32 digits.
        let Some(place) = field.parse::<u64>().ok().filter(|_| field.len() < 32) else { continue };
        let words: Vec<&str> = value.split(' ').collect();
        let [owner, seen, number, _ttl, _channel, _holder] = words[..] else { return None };
        if fields.get(owner) != Some(field) {
            return None;
        }
        let quiet = (millis - seen.parse::<u64>().ok()?) / (1000 * TICK);
        let proof = ticks - number.parse::<u64>().ok()?;
        let waiter = client_of(owner)?;
        let (proof, quiet) = (proof.min(OLDEST.into()) as u8, quiet.min(LIVE.into()) as u8);
        line.insert(place, Place { waiter, proof, quiet });
    }
    let owners = fields.keys().filter(|field| client_of(field).is_some()).count();
    let end = |field: &str| fields.get(field).and_then(|value| value.parse::<u64>().ok());
    let within = match (line.keys().next(), line.keys().last()) {
        (Some(first), Some(last)) => end("h")? <= *first && *last < end("t")?,
        _ => true,
    };
    (owners == line.len() && within).then(|| line.into_values().collect())
}

/// Whose claims are refused.
fn bars(fields: &BTreeMap<String, String>, millis: u64) -> Option<Vec<Bar>> {
    let mut bars = Vec::new();
    for (field, value) in fields {
        let Some(owner) = field.strip_prefix('b').and_then(client_of) else { continue };
        let left = value.parse::<u64>().ok()?.saturating_sub(millis);
        if left > 0 {
            bars.push(Bar { owner, left: ticks_in(left) });
        }
    }
    Some(bars)
}
