//! Rows that we never wrote: what an editor, a bad disk or a later version may leave behind.
//! The tables are strict, so that the types are right; nothing else need be.

use std::cell::RefCell;

use proptest::collection::vec;
use proptest::option::of;
use proptest::prelude::*;
use rusqlite::{Connection, params};

use super::*;
use crate::token::Token;

/// A lock, who holds it and who waits for it, with anything in each column.
#[derive(Debug, Clone)]
struct Odd {
    token: i64,
    owner: Option<Vec<u8>>,
    /// Proved, expires, since.
    times: [i64; 3],
    /// Of the process that holds the lock and waits for it.
    pid: i64,
    started: Option<i64>,
    is_of_our_namespace: bool,
    group: Option<i64>,
    waiter: Option<(Vec<u8>, i64, i64)>,
}

const CLIENT: i64 = 1_000_000;

fn number() -> impl Strategy<Value = i64> {
    let edges = vec![i64::MIN, -1, 0, 1, i64::from(i32::MAX) + 1, 1 << 53, i64::MAX];
    prop_oneof![any::<i64>(), 0..100_000i64, prop::sample::select(edges)]
}

fn owner() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![3 => vec(any::<u8>(), 16), 1 => vec(any::<u8>(), 0..20)]
}

fn odd() -> impl Strategy<Value = Odd> {
    let lock = (number(), of(owner()), [number(), number(), number()]);
    let process = (number(), of(number()), any::<bool>(), of(number()));
    (lock, process, of((owner(), number(), number()))).prop_map(|(lock, process, waiter)| {
        let (token, owner, times) = lock;
        let (pid, started, is_of_our_namespace, group) = process;
        Odd { token, owner, times, pid, started, is_of_our_namespace, group, waiter }
    })
}

impl Odd {
    fn write(&self, database: &Connection) -> rusqlite::Result<()> {
        database.execute_batch(
            "delete from locks where name = 'odd'; delete from waiters where lock = 'odd'; \
             delete from clients where id = 1000000;",
        )?;
        let here = std::fs::read_link("/proc/self/ns/pid").unwrap();
        let namespace = here.to_str().filter(|_| self.is_of_our_namespace);
        database.execute(
            "insert into clients (id, host, pid, label, started, namespace, bell, process_group) \
             values (?1, 'host', ?2, 'label', ?3, ?4, 'bell', ?5)",
            params![CLIENT, self.pid, self.started, namespace, self.group],
        )?;
        let [proved, expires, since] = self.times;
        database.execute(
            "insert into locks (name, token, owner, client, proved, expires, since) \
             values ('odd', ?1, ?2, ?3, ?4, ?5, ?6)",
            params![self.token, self.owner, CLIENT, proved, expires, since],
        )?;
        if let Some((owner, ttl, alive_until)) = &self.waiter {
            database.execute(
                "insert into waiters (lock, sequence, owner, client, ttl, alive_until) \
                 values ('odd', 1, ?1, ?2, ?3, ?4)",
                params![owner, CLIENT, ttl, alive_until],
            )?;
        }
        Ok(())
    }
}

/// Asks for the lock in all ways. Errors are fine; a panic, or a token that falls, is not.
async fn use_odd(store: &Arc<SqliteStore>, odd: &Odd) {
    let _ = store.clone().inspect(name("odd").into()).await;
    let _ = store.clone().list(String::new()).await;
    let _ = store.clone().settle(vec![claim("odd")]).await;
    for claim in [claim("odd"), queueing("odd")] {
        let verdict = store.clone().acquire(vec![claim.clone()]).await;
        let mut token = Token::new(odd.token.unsigned_abs());
        if let Ok([Verdict::Granted(grant)]) = verdict.as_deref() {
            assert!(odd.token < 0 || grant.token > token, "{grant:?}");
            token = grant.token;
        }
        let hold = claim.hold(token);
        let _ = store.clone().renew(vec![hold.clone()]).await;
        let _ = store.clone().release(vec![hold]).await;
        let _ = store.clone().leave(claim).await;
    }
}

/// A token beyond all tokens was swept into the floor, and no lock could be had any more.
#[test]
fn an_odd_row_panics_nowhere_and_harms_no_other_lock() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let database = Connection::open(fixture.path()).unwrap();
    let keeper = RefCell::new(fixture.keeper());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    proptest!(|(odd in odd())| {
        odd.write(&database).unwrap();
        runtime.block_on(async {
            use_odd(&store, &odd).await;
            let _ = keeper.borrow_mut().sweep();
            let sound = claim("sound");
            let grant = take(&store, &sound).await;
            assert_eq!(give_back(&store, &sound, grant).await, Release::Released);
        });
    });
}
