//! Sixteen clients and one lock, beside a list that they pop a single element from: no
//! lock can be handed over with less, and that one is lost with whoever holds it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use leasehold::clock::{Clock, Moment};
use redis::aio::MultiplexedConnection;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use super::crowd::fair;
use super::peers::Peer;
use super::raw::connection;
use super::server::Server;
use crate::Plan;
use crate::contender::{Rhythm, Turn, Wanted, contend};
use crate::handover::figures;
use crate::report::{Goal, Row, Table};
use crate::stats::median;

const CLIENTS: usize = 16;
const COLUMNS: &[&str] =
    &["turns/s", "p50", "p99", "wait ms", "self %", "cmds", "x fair", "passed", "to pop"];
/// All of them but the last.
const FIGURES: usize = COLUMNS.len() - 1;

/// The figures of one repetition: the list's, the lock's.
type Pairing = ([f64; FIGURES], [f64; FIGURES]);

pub(crate) fn run(plan: &Plan, server: &Server) -> Result<Table> {
    let runtime = plan.runtime()?;
    let mut rows = Vec::new();
    for (says, pause, goal) in [("", 0, 0.75), (", 5 ms idle", 5, 0.97)] {
        let ours = format!("redis, {CLIENTS} clients{says}");
        if !plan.wants(&ours) {
            continue;
        }
        let pause = Duration::from_millis(pause);
        let mut repetitions = Vec::new();
        for _ in 0..plan.repetitions(5) {
            let pop = measured(&runtime, server, plan.measure, pause, true)?;
            let lock = measured(&runtime, server, plan.measure, pause, false)?;
            repetitions.push((pop, lock));
        }
        let of = |figure: &dyn Fn(&Pairing) -> f64| median(repetitions.iter().map(figure));
        let mut pop: Vec<_> = (0..FIGURES).map(|column| of(&|(pop, _)| pop[column])).collect();
        let mut lock: Vec<_> = (0..FIGURES).map(|column| of(&|(_, lock)| lock[column])).collect();
        let turns_of_pop = pop[0];
        pop.push(1.0);
        lock.push(of(&|(pop, lock)| lock[0] / pop[0]));
        rows.push(Row { case: format!("BLPOP{says}"), figures: pop, goals: vec![] });
        let goals = vec![
            Goal::AtLeast("to pop", goal),
            Goal::AtMost("cmds", 3.0),
            Goal::AtMost("self %", 0.0),
            Goal::AtMost("x fair", 3.0),
            Goal::AtMost("passed", 3.0),
        ];
        rows.push(Row { case: ours, figures: lock, goals });
        for peer in Peer::ALL {
            let turns = peer.turns(&runtime, server, CLIENTS, plan.measure, pause)?;
            let Some(turns) = turns else { continue };
            let passed = passed(&turns);
            let [rate, p50, p99, wait, again] = figures(turns)?;
            let fair = fair(wait, CLIENTS, rate);
            let to_pop = rate / turns_of_pop;
            let figures = vec![rate, p50, p99, wait, again, f64::NAN, fair, passed, to_pop];
            rows.push(Row { case: format!("{}{says}", peer.name()), figures, goals: vec![] });
        }
    }
    let notes = vec![
        "BLPOP: take the one element of a list, push it back; no token, no crash safety.".into(),
        "x fair: the longest wait by the time in which everybody has a turn; a stall of the \
         machine is in it."
            .into(),
        "passed: the most turns of others in one wait, by the number of others; no stall is."
            .into(),
        "cmds: commands of clients for each turn, heartbeats included, messages not.".into(),
    ];
    Ok(Table { group: "redis handover", columns: COLUMNS, rows, notes })
}

fn measured(
    runtime: &Runtime,
    server: &Server,
    measure: Duration,
    pause: Duration,
    pop: bool,
) -> Result<[f64; FIGURES]> {
    let rhythm = Rhythm { hold: Duration::ZERO, pause };
    runtime.block_on(async {
        let mut control = connection(&server.url()).await?;
        let _: () = redis::cmd("FLUSHALL").query_async(&mut control).await?;
        let mut running = JoinSet::new();
        let tokens = Arc::<AtomicU64>::default();
        if pop {
            let _: () = redis::cmd("LPUSH").arg("one").arg(1).query_async(&mut control).await?;
        }
        let mut connections = Vec::new();
        let mut locks = Vec::new();
        for _ in 0..CLIENTS {
            match pop {
                true => connections.push(connection(&server.url()).await?),
                false => locks.push(leasehold::connect(server.url()).await?.lock("contended")),
            }
        }
        let before = commands(&mut control).await?;
        let end = Clock::boot().now() + measure;
        for (client, connection) in connections.into_iter().enumerate() {
            running.spawn(pop_until(client, connection, rhythm, end, tokens.clone()));
        }
        for (client, lock) in locks.into_iter().enumerate() {
            running.spawn(contend(client, Wanted::Lease(lock), rhythm, end));
        }
        let mut turns = Vec::new();
        while let Some(some) = running.join_next().await {
            turns.append(&mut some??);
        }
        let sent = commands(&mut control).await? - before;
        let each = sent as f64 / turns.len() as f64;
        let passed = passed(&turns);
        let [rate, p50, p99, wait, again] = figures(turns)?;
        Ok([rate, p50, p99, wait, again, each, fair(wait, CLIENTS, rate), passed])
    })
}

/// The most turns that others had while one waited, by the number of others: one when all
/// take turns. Unlike the longest wait it says nothing about how fast the machine was.
fn passed(turns: &[Turn]) -> f64 {
    let mut granted: Vec<_> = turns.iter().map(|turn| turn.granted).collect();
    granted.sort();
    let before = |moment| granted.partition_point(|granted| *granted < moment);
    let most = turns.iter().map(|turn| before(turn.granted).saturating_sub(before(turn.asked)));
    most.max().unwrap_or(0) as f64 / (CLIENTS - 1) as f64
}

async fn pop_until(
    client: usize,
    mut connection: MultiplexedConnection,
    rhythm: Rhythm,
    end: Moment,
    tokens: Arc<AtomicU64>,
) -> Result<Vec<Turn>> {
    let clock = Clock::boot();
    let mut turns = Vec::with_capacity(1 << 16);
    loop {
        let asked = clock.now();
        if asked >= end {
            return Ok(turns);
        }
        let _: redis::Value =
            redis::cmd("BLPOP").arg("one").arg(0).query_async(&mut connection).await?;
        let granted = clock.now();
        let token = tokens.fetch_add(1, Ordering::Relaxed);
        turns.push(Turn { client, token, asked, granted, released: clock.now() });
        let _: () = redis::cmd("LPUSH").arg("one").arg(1).query_async(&mut connection).await?;
        if !rhythm.pause.is_zero() {
            tokio::time::sleep(rhythm.pause).await;
        }
    }
}

/// How many commands clients sent so far that take or give back.
async fn commands(control: &mut MultiplexedConnection) -> Result<u64> {
    let stats: String = redis::cmd("INFO").arg("commandstats").query_async(control).await?;
    let mut sum = 0;
    for name in ["evalsha", "blpop", "lpush"] {
        let start = format!("cmdstat_{name}:calls=");
        if let Some(line) = stats.lines().find_map(|line| line.strip_prefix(&start)) {
            let calls = line.split(',').next().context("a count")?;
            sum += calls.parse::<u64>()?;
        }
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_of_others_are_counted_while_one_waits() {
        let turn = |client, asked, granted| {
            let [asked, granted] = [asked, granted].map(Moment::from_nanos);
            Turn { client, token: granted.as_nanos(), asked, granted, released: granted }
        };
        // The third waits while the first and the second have three turns.
        let turns = [turn(0, 0, 1), turn(2, 2, 9), turn(1, 2, 3), turn(0, 3, 5), turn(1, 4, 7)];
        assert_eq!(passed(&turns), 3.0 / 15.0);
        assert_eq!(passed(&[]), 0.0);
    }
}
