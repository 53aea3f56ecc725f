//! The yardsticks for lease mode: a row per lock, taken and given back by one statement each,
//! with many claims in it, or one at a time on many connections. Commits wait for the disk.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Result, ensure};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Statement};

use super::{connection, tasks};
use crate::pairs::{Run, names};
use crate::stats::{Latencies, latencies, record};

const TABLE: &str = "create table if not exists raw_lease (name text primary key, owner bytea, \
     token bigint not null, expires timestamptz not null) with (fillfactor = 50)";

const TAKE: &str = "with taken as (insert into raw_lease as l (name, owner, token, expires) \
     select u.name, u.owner, 1, now() + interval '30 s' \
     from unnest($1::text[], $2::bytea[]) as u(name, owner) order by u.name \
     on conflict (name) do update set owner = excluded.owner, token = l.token + 1, \
     expires = excluded.expires where l.owner is null or l.expires < now() returning l.token) \
     select array_agg(token) from taken";

const GIVE_BACK: &str = "with given as (update raw_lease l set owner = null \
     from unnest($1::text[], $2::bytea[]) as u(name, owner) \
     where l.name = u.name and l.owner = u.owner returning 1) select count(*) from given";

/// Names that are taken together, set by set.
type Sets = Arc<[Vec<String>]>;

struct Raw {
    client: Arc<Client>,
    take: Statement,
    give_back: Statement,
}

impl Raw {
    fn open(runtime: &Runtime, url: &str) -> Result<Arc<Self>> {
        let client = connection(runtime, url)?;
        runtime.block_on(async {
            client.batch_execute(TABLE).await?;
            let (take, give_back) = (client.prepare(TAKE).await?, client.prepare(GIVE_BACK).await?);
            Ok(Arc::new(Self { client, take, give_back }))
        })
    }

    /// Goes round these sets of names: takes and gives back all of one, then of the next.
    async fn pairs_until(self: Arc<Self>, end: Instant, sets: Sets) -> Result<Latencies> {
        let most = sets.iter().map(Vec::len).max().unwrap_or(0);
        let owners = vec![&[7u8; 16][..]; most];
        let mut latencies = latencies();
        let mut before = Instant::now();
        for names in sets.iter().cycle() {
            if before >= end {
                break;
            }
            let owners = &owners[..names.len()];
            let taken = self.client.query_one(&self.take, &[&names, &owners]).await?;
            ensure!(taken.get::<_, Vec<i64>>(0).len() == names.len(), "the raw loop got too few");
            let given: i64 =
                self.client.query_one(&self.give_back, &[&names, &owners]).await?.get(0);
            ensure!(given == names.len() as i64, "the raw loop lost its own locks");
            let after = Instant::now();
            (0..names.len()).for_each(|_| record(&mut latencies, after - before));
            before = after;
        }
        Ok(latencies)
    }
}

/// So many claims share each statement, and each commit. The names are those of our own
/// tasks, and come in the same turn: the table is of the same size, and has as many versions.
pub(super) fn batched(runtime: &Arc<Runtime>, url: &str, count: usize) -> Result<Run> {
    let raw = Raw::open(runtime, url)?;
    let runtime = runtime.clone();
    let each: Vec<Vec<String>> = (0..count).map(|claim| names(claim, count)).collect();
    let turn = |turn: usize| each.iter().map(|names| names[turn].clone()).collect();
    let sets: Sets = (0..each[0].len()).map(turn).collect();
    Ok(Box::new(move |measure| {
        let end = Instant::now() + measure;
        tasks(&runtime, vec![raw.clone().pairs_until(end, sets.clone())])
    }))
}

/// So many clients, each with a connection of its own.
pub(super) fn connections(runtime: &Arc<Runtime>, url: &str, count: usize) -> Result<Run> {
    let raws: Vec<Arc<Raw>> = (0..count).map(|_| Raw::open(runtime, url)).collect::<Result<_>>()?;
    let runtime = runtime.clone();
    Ok(Box::new(move |measure| {
        let end = Instant::now() + measure;
        let each = |(client, raw): (usize, &Arc<Raw>)| {
            let names = names(client, count).into_iter().map(|name| vec![format!("alone:{name}")]);
            raw.clone().pairs_until(end, names.collect())
        };
        tasks(&runtime, raws.iter().enumerate().map(each).collect())
    }))
}
