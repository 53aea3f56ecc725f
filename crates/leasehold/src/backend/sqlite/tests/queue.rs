//! Waiting in the queue, between stores that share nothing but the file.

use std::process::Command;

use tokio::task::JoinHandle;

use super::*;
use crate::backend::{Force, Turn};
use crate::error::Result;
use crate::loss::Forced;

fn waiting(store: &Arc<SqliteStore>, claim: &Claim) -> JoinHandle<Result<Turn>> {
    tokio::spawn(store.clone().wait(claim.clone()))
}

async fn enqueue(store: &Arc<SqliteStore>, claim: &Claim) {
    let verdict = ask(store, claim).await;
    assert!(matches!(verdict, Verdict::Queued(Some(_))), "{verdict:?}");
}

async fn turn(waiting: JoinHandle<Result<Turn>>) -> Grant {
    match waiting.await.unwrap().unwrap() {
        Turn::Granted(grant) => grant,
        Turn::TryAgain => panic!("lost its place"),
    }
}

async fn waiters(store: &Arc<SqliteStore>) -> usize {
    store.clone().inspect(name("a").into()).await.unwrap().unwrap().waiters
}

#[tokio::test]
async fn waiters_are_served_in_the_order_in_which_they_came() {
    let fixture = Fixture::new();
    let stores: Vec<_> = (0..4).map(|_| fixture.open()).collect();
    let claims: Vec<_> = (0..4).map(|_| queueing("a")).collect();
    let mut grant = take(&stores[0], &claims[0]).await;
    let mut tasks = Vec::new();
    for (store, claim) in stores.iter().zip(&claims).skip(1) {
        enqueue(store, claim).await;
        tasks.push(waiting(store, claim));
    }
    // Asking again keeps the place.
    enqueue(&stores[1], &claims[1]).await;
    assert_eq!(waiters(&stores[0]).await, 3);
    for (i, task) in tasks.into_iter().enumerate() {
        let before = grant;
        assert_eq!(give_back(&stores[i], &claims[i], grant).await, Release::Released);
        grant = turn(task).await;
        assert!(grant.token > before.token);
        assert_eq!(grant.proof.valid_for, Duration::from_secs(3), "until the first renewal");
        assert_eq!(take(&stores[i + 1], &claims[i + 1]).await, grant, "asked again");
    }
}

#[tokio::test]
async fn a_newcomer_does_not_pass_those_who_wait() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    take(&one, &claim("a")).await;
    let first = queueing("a");
    enqueue(&two, &first).await;
    // The lease lapses while the waiter is alive but has not looked yet.
    let refresh = "update waiters set alive_until = alive_until + 60000000000";
    fixture.keeper().session.connection.execute(refresh, ()).unwrap();
    fixture.hand.advance(TTL);
    assert!(matches!(ask(&one, &claim("a")).await, Verdict::Held(Some(_))));
    turn(waiting(&two, &first)).await;
}

#[tokio::test]
async fn a_waiter_takes_over_when_the_holders_time_is_up() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    take(&one, &claim("a")).await;
    let first = queueing("a");
    enqueue(&two, &first).await;
    let task = waiting(&two, &first);
    tokio::task::yield_now().await;
    fixture.hand.advance(TTL);
    assert_eq!(turn(task).await.proof.valid_for, TTL);
}

/// All overslept together, so nobody loses its place: first come, first served.
#[tokio::test]
async fn after_a_suspend_the_order_is_kept() {
    let fixture = Fixture::new();
    let stores = [fixture.open(), fixture.open(), fixture.open()];
    take(&stores[0], &claim("a")).await;
    let (first, second) = (queueing("a"), queueing("a"));
    enqueue(&stores[1], &first).await;
    enqueue(&stores[2], &second).await;
    // The second one looks first.
    let late = waiting(&stores[2], &second);
    let early = waiting(&stores[1], &first);
    tokio::task::yield_now().await;
    fixture.hand.advance(TTL * 2);
    let grant = turn(early).await;
    assert!(!late.is_finished());
    give_back(&stores[1], &first, grant).await;
    turn(late).await;
}

/// A queue must not stand still behind a dead waiter (redisson#3004, #6150).
#[tokio::test]
async fn waiters_that_do_not_answer_or_are_gone_are_skipped() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let held = claim("a");
    let grant = take(&one, &held).await;
    enqueue(&one, &queueing("a")).await;
    fixture.hand.advance(Duration::from_secs(3));
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let holder = Arc::new(Holder::new("here", child.id(), "sleep"));
    enqueue(&two, &Claim { holder, ..queueing("a") }).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let alive = queueing("a");
    enqueue(&two, &alive).await;
    let task = waiting(&two, &alive);
    give_back(&one, &held, grant).await;
    turn(task).await;
    assert_eq!(waiters(&one).await, 0);
}

#[tokio::test]
async fn the_death_of_the_holders_process_wakes_a_waiter() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let holder = Arc::new(Holder::new("here", child.id(), "sleep"));
    take(&one, &Claim { holder, ..claim("a") }).await;
    let next = queueing("a");
    enqueue(&two, &next).await;
    let task = waiting(&two, &next);
    tokio::task::yield_now().await;
    // The clock stands still: nothing but the death can end the wait.
    child.kill().unwrap();
    turn(task).await;
    child.wait().unwrap();
}

#[tokio::test]
async fn a_holder_that_died_before_the_wait_began_is_not_waited_for() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let mut child = Command::new("sleep").arg("600").spawn().unwrap();
    let holder = Arc::new(Holder::new("here", child.id(), "sleep"));
    take(&one, &Claim { holder, ..claim("a") }).await;
    let next = queueing("a");
    enqueue(&two, &next).await;
    child.kill().unwrap();
    child.wait().unwrap();
    turn(waiting(&two, &next)).await;
}

#[tokio::test]
async fn leaving_passes_the_grant_on() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let held = claim("a");
    let grant = take(&one, &held).await;
    let (quits, stays) = (queueing("a"), queueing("a"));
    enqueue(&one, &quits).await;
    enqueue(&two, &stays).await;
    let task = waiting(&two, &stays);
    give_back(&one, &held, grant).await;
    one.clone().leave(quits.clone()).await.unwrap();
    turn(task).await;
    assert!(matches!(ask(&one, &claim("a")).await, Verdict::Held(_)));
}

#[tokio::test]
async fn a_dropped_wait_keeps_the_place_and_a_settled_one_does_not() {
    let fixture = Fixture::new();
    let store = fixture.open();
    let held = claim("a");
    let grant = take(&store, &held).await;
    let next = queueing("a");
    enqueue(&store, &next).await;
    let task = waiting(&store, &next);
    tokio::task::yield_now().await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    assert_eq!(waiters(&store).await, 1);
    assert_eq!(store.clone().settle(vec![next.clone()]).await.unwrap(), [None]);
    assert_eq!(waiters(&store).await, 0);
    give_back(&store, &held, grant).await;
    assert_eq!(store.clone().wait(next.clone()).await.unwrap(), Turn::TryAgain);
    assert_eq!(ask(&store, &next).await, Verdict::Held(None));
}

#[tokio::test]
async fn force_lets_the_next_waiter_in() {
    let fixture = Fixture::new();
    let (one, two) = (fixture.open(), fixture.open());
    let grant = take(&one, &claim("a")).await;
    let next = queueing("a");
    enqueue(&two, &next).await;
    let task = waiting(&two, &next);
    one.clone()
        .force_release(name("a").into(), Force::new(Forced::new("ada", "stuck")))
        .await
        .unwrap();
    assert!(turn(task).await.token > grant.token);
}
