//! Hand-over: from the start of one client's release to the return of the next
//! client's acquire. It counts only between different clients, and only where the
//! next holder was already waiting; anything else would be idle time.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, ensure};
use leasehold::Locks;
use leasehold::backend::memory::MemoryStore;
use leasehold::clock::Clock;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Mutex;
use tokio::task::JoinSet;

use crate::Plan;
use crate::contender::{Rhythm, Turn, Wanted, contend};
use crate::report::{Goal, Row, Table};
use crate::stats::{latencies, median, micros, record};
use crate::worker::{self, Orders};

const CLIENTS: usize = 16;
const COLUMNS: &[&str] = &["turns/s", "p50", "p99", "wait ms", "self %"];

/// Where the contenders are.
#[derive(Debug, Clone, Copy)]
enum Arena {
    Tokio,
    Memory,
    Sqlite,
    Processes { processes: usize, clients: usize },
}

const ARENAS: &[(&str, Arena)] = &[
    ("tokio, 16 tasks", Arena::Tokio),
    ("memory, 16 clients", Arena::Memory),
    ("sqlite, 16 clients", Arena::Sqlite),
    ("sqlite, 2 procs", Arena::Processes { processes: 2, clients: 1 }),
    ("sqlite, 2 procs x 8", Arena::Processes { processes: 2, clients: 8 }),
    ("sqlite, 16 procs", Arena::Processes { processes: 16, clients: 1 }),
];

struct Case {
    name: String,
    arena: Arena,
    rhythm: Rhythm,
    goals: Vec<Goal>,
}

pub(crate) fn run(plan: &Plan) -> Result<Table> {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut cases = cases();
    cases.retain(|case| plan.wants(&case.name));
    let mut repetitions = Vec::new();
    for _ in 0..plan.repetitions(5) {
        let mut round = Vec::new();
        for case in &cases {
            // A fresh database each time: contenders of the last one have left nothing.
            let directory = plan.directory()?;
            round.push(figures(turns(case, &runtime, directory.path(), plan.measure)?)?);
        }
        repetitions.push(round);
    }
    let row = |(index, case): (usize, &Case)| Row {
        case: case.name.clone(),
        figures: (0..COLUMNS.len())
            .map(|column| median(repetitions.iter().map(|round| round[index][column])))
            .collect(),
        goals: case.goals.clone(),
    };
    let rows = cases.iter().enumerate().map(row).collect();
    let notes = vec![
        "p50, p99: start of a release to the next acquire's return, by another who waited.".into(),
        "wait: the longest of any acquire. self: taken again by the last while others waited."
            .into(),
    ];
    Ok(Table { group: "handover", columns: COLUMNS, rows, notes })
}

fn cases() -> Vec<Case> {
    let rhythms = [
        ("", Duration::ZERO, Duration::ZERO),
        (", 5 ms idle", Duration::ZERO, Duration::from_millis(5)),
        (", held 2 ms", Duration::from_millis(2), Duration::ZERO),
    ];
    let mut cases = Vec::new();
    for (says, hold, pause) in rhythms {
        for (name, arena) in ARENAS {
            let two = matches!(arena, Arena::Processes { processes: 2, clients: 1 });
            // Two that hold for no time hardly ever meet when they pause between.
            if two && !pause.is_zero() {
                continue;
            }
            // Holding shows how soon one that sleeps is woken: it needs no crowd.
            if !hold.is_zero() && !two {
                continue;
            }
            let goals = if two { vec![Goal::AtMost("p50", 250.0)] } else { Vec::new() };
            let rhythm = Rhythm { hold, pause };
            cases.push(Case { name: format!("{name}{says}"), arena: *arena, rhythm, goals });
        }
    }
    cases
}

fn turns(case: &Case, runtime: &Runtime, directory: &Path, measure: Duration) -> Result<Vec<Turn>> {
    let url = format!("sqlite:{}", directory.join("locks.db").display());
    match case.arena {
        Arena::Processes { processes, clients } => {
            let orders = |process| Orders {
                url: url.clone(),
                first: process * clients,
                clients,
                hold_micros: case.rhythm.hold.as_micros() as u64,
                pause_micros: case.rhythm.pause.as_micros() as u64,
            };
            let orders: Vec<Orders> = (0..processes).map(orders).collect();
            worker::contend_all(&orders, measure)
        }
        arena => runtime.block_on(async {
            let wanted = contenders(arena, &url).await?;
            let end = Clock::boot().now() + measure;
            let mut running = JoinSet::new();
            for (client, wanted) in wanted.into_iter().enumerate() {
                running.spawn(contend(client, wanted, case.rhythm, end));
            }
            let mut all = Vec::new();
            while let Some(turns) = running.join_next().await {
                all.append(&mut turns??);
            }
            Ok(all)
        }),
    }
}

/// One client each; on SQLite with a connection each.
async fn contenders(arena: Arena, url: &str) -> Result<Vec<Wanted>> {
    let store = MemoryStore::new(Clock::boot());
    let mutex = Arc::new(Mutex::new(0));
    let mut wanted = Vec::new();
    for _ in 0..CLIENTS {
        wanted.push(match arena {
            Arena::Tokio => Wanted::Tokio(mutex.clone()),
            Arena::Memory => Wanted::Lease(Locks::on(store.clone()).await?.lock("contended")),
            Arena::Sqlite | Arena::Processes { .. } => {
                Wanted::Lease(leasehold::connect(url).await?.lock("contended"))
            }
        });
    }
    Ok(wanted)
}

/// In the order of [`COLUMNS`].
pub(crate) fn figures(mut turns: Vec<Turn>) -> Result<[f64; 5]> {
    turns.sort_by_key(|turn| turn.token);
    let mut handovers = latencies();
    let (mut again, mut contended) = (0usize, 0usize);
    for (index, pair) in turns.windows(2).enumerate() {
        let [last, next] = pair else { continue };
        // What the lock is for, checked on the way.
        ensure!(last.token < next.token && last.released <= next.granted, "two held it at once");
        let waits = |turn: &Turn| turn.client != last.client && turn.asked <= last.released;
        if waits(next) {
            record(&mut handovers, last.released.until(next.granted));
        }
        if turns[index + 1..].iter().take(4 * CLIENTS).any(waits) {
            contended += 1;
            again += usize::from(next.client == last.client);
        }
    }
    let (first, last) = (turns.first().map(|t| t.granted), turns.last().map(|t| t.released));
    let elapsed = first.zip(last).map_or(Duration::ZERO, |(first, last)| first.until(last));
    let longest = turns.iter().map(|turn| turn.asked.until(turn.granted)).max();
    let some = |figure| if handovers.is_empty() { f64::NAN } else { figure };
    Ok([
        turns.len() as f64 / elapsed.as_secs_f64(),
        some(micros(&handovers, 0.5)),
        some(micros(&handovers, 0.99)),
        longest.unwrap_or_default().as_secs_f64() * 1e3,
        100.0 * again as f64 / contended.max(1) as f64,
    ])
}

#[cfg(test)]
mod tests {
    use leasehold::clock::Moment;

    use super::*;

    fn turn(client: usize, token: u64, moments: [u64; 3]) -> Turn {
        let [asked, granted, released] = moments.map(|micros| Moment::from_nanos(micros * 1000));
        Turn { client, token, asked, granted, released }
    }

    #[test]
    fn only_those_who_waited_count() {
        // The second waited while the first held it, the third came later.
        let turns = vec![turn(0, 1, [0, 0, 10]), turn(1, 2, [5, 15, 20]), turn(0, 3, [50, 60, 70])];
        let [_, p50, _, wait, again] = figures(turns).unwrap();
        assert!((4.9..5.1).contains(&p50), "{p50}");
        assert!((0.009..0.011).contains(&wait), "{wait}");
        assert_eq!(again, 0.0);
    }

    #[test]
    fn taking_it_again_counts_while_another_waits() {
        let turns = vec![turn(0, 1, [0, 0, 10]), turn(0, 2, [11, 12, 20]), turn(1, 3, [5, 25, 30])];
        assert_eq!(figures(turns).unwrap()[4], 50.0);
    }

    #[test]
    fn two_at_once_is_an_error() {
        let turns = vec![turn(0, 1, [0, 0, 10]), turn(1, 2, [0, 9, 20])];
        assert!(figures(turns).is_err());
    }
}
