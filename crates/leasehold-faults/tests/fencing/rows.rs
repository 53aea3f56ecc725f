//! Conditional writes of rows in PostgreSQL, transitions, outcomes.

use leasehold::Token;
use leasehold::fence::postgres::{
    PostgresOutcomes, Rows, advance_row, claim, delete, finish, put, update,
};
use leasehold::fence::{FenceError, Moved, Once, Outcomes, Standing};

use crate::{NEW, OLD, STALE, postgres};

#[tokio::test]
async fn rows_take_conditional_writes_and_keep_tombstones() {
    let (server, db) = postgres().await;
    server
        .psql("create table jobs (id bigint primary key, note text, pages int, fence_token bigint not null)")
        .unwrap();
    let (db, jobs) = (&*db, &Rows::new("public.jobs", "id"));
    let note = async |token, note: &str| {
        put(db, jobs, &1i64, token, &[("note", &note), ("pages", &3i32)]).await
    };
    let missing = update(db, jobs, &1i64, OLD, "note = $3", &[&"x"]).await.unwrap_err();
    assert!(matches!(missing, FenceError::NotFound { .. }), "{missing}");
    note(OLD, "old").await.unwrap();
    note(NEW, "new").await.unwrap();
    assert_eq!(note(OLD, "late").await.unwrap_err().stale(), Some(STALE));
    let late = update(db, jobs, &1i64, OLD, "note = $3", &[&"late"]).await.unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    assert_eq!(delete(db, jobs, &1i64, OLD).await.unwrap_err().stale(), Some(STALE));
    update(db, jobs, &1i64, NEW, "note = note || $3, pages = pages + $4", &[&"er", &1i32])
        .await
        .unwrap();
    assert_eq!(server.psql("select note, pages from jobs").unwrap(), "newer|4");

    assert!(delete(db, jobs, &1i64, NEW).await.unwrap());
    assert!(!delete(db, jobs, &1i64, NEW).await.unwrap(), "again, after a lost answer");
    assert_eq!(note(OLD, "back from the dead").await.unwrap_err().stale(), Some(STALE));
    assert!(!delete(db, jobs, &2i64, NEW).await.unwrap(), "it was never there");
    let late = put(db, jobs, &2i64, OLD, &[]).await.unwrap_err();
    assert_eq!(late.stale(), Some(STALE), "and stays away");
    assert_eq!(server.psql("select count(*) from jobs").unwrap(), "0");
    note(NEW, "anew").await.unwrap();
}

#[tokio::test]
async fn a_row_has_one_mark_however_table_and_key_are_spelled() {
    let (server, db) = postgres().await;
    server
        .psql("create table slots (at numeric primary key, fence_token bigint not null)")
        .unwrap();
    let db = &*db;
    for (table, at) in [("slots", "1"), ("public.slots", "1.00")] {
        let mark = format!("select leasehold_fence.mark_of('{table}', {at}::numeric)");
        assert_eq!(server.psql(&mark).unwrap(), "public.slots/1");
    }
    server
        .psql("create table days (at timestamptz primary key, fence_token bigint not null)")
        .unwrap();
    let at = std::time::SystemTime::UNIX_EPOCH;
    put(db, &Rows::new("days", "at"), &at, NEW, &[]).await.unwrap();
    assert!(delete(db, &Rows::new("days", "at"), &at, NEW).await.unwrap());
    db.batch_execute("set timezone = 'Asia/Tokyo'").await.unwrap();
    let late = put(db, &Rows::new("public.days", "at"), &at, OLD, &[]).await.unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
}

#[tokio::test]
async fn advancing_a_row_shuts_older_leases_out_before_the_first_write() {
    let (server, db) = postgres().await;
    server
        .psql(
            "create table jobs (id int primary key, state text, fence_token bigint not null default 0);
             insert into jobs values (1, 'NEW')",
        )
        .unwrap();
    let (db, jobs) = (&*db, &Rows::new("jobs", "id"));
    advance_row(db, jobs, &1i32, NEW).await.unwrap();
    advance_row(db, jobs, &2i32, NEW).await.unwrap();
    let late = [
        update(db, jobs, &1i32, OLD, "state = $3", &[&"LATE"]).await.unwrap_err(),
        claim(db, jobs, &1i32, OLD, "NEW", "PROCESSING").await.unwrap_err(),
        put(db, jobs, &2i32, OLD, &[]).await.unwrap_err(),
        advance_row(db, jobs, &1i32, OLD).await.unwrap_err(),
    ];
    assert_eq!(late.map(|late| late.stale()), [Some(STALE); 4]);
    assert_eq!(claim(db, jobs, &1i32, NEW, "NEW", "PROCESSING").await.unwrap(), Moved::Now);
}

#[tokio::test]
async fn a_transition_happens_once_and_a_dead_worker_is_taken_over() {
    let (server, db) = postgres().await;
    server
        .psql(
            "create table jobs (id int primary key, stage text, fence_token bigint not null default 0);
             insert into jobs values (1, 'NEW')",
        )
        .unwrap();
    let jobs = Rows::new("jobs", "id").state_column("stage");
    let claim = async |token| claim(&*db, &jobs, &1i32, token, "NEW", "PROCESSING").await;
    let finish = async |token| finish(&*db, &jobs, &1i32, token, "PROCESSING", "DONE").await;
    assert!(
        matches!(finish(OLD).await, Err(FenceError::WrongState { found, .. }) if found == "NEW")
    );
    assert_eq!(claim(OLD).await.unwrap(), Moved::Now);
    assert_eq!(claim(OLD).await.unwrap(), Moved::Before);
    assert_eq!(claim(NEW).await.unwrap(), Moved::Now, "taken over");
    assert_eq!(finish(OLD).await.unwrap_err().stale(), Some(STALE));
    assert_eq!(finish(NEW).await.unwrap(), Moved::Now);
    assert_eq!(finish(NEW).await.unwrap(), Moved::Before);
    let done = claim(Token::new(35)).await;
    assert!(matches!(done, Err(FenceError::WrongState { found, .. }) if found == "DONE"));
}

#[tokio::test]
async fn an_outcome_is_remembered_and_a_late_one_is_refused() {
    let (_server, db) = postgres().await;
    let outcomes = PostgresOutcomes::new(db);
    let locks = leasehold::connect("memory:").await.unwrap();
    let once = Once::new(locks, "charge", outcomes.clone());
    let charge = async |token| Ok::<_, FenceError>(format!("receipt {token}").into_bytes());
    let first = once.run("order", charge).await.unwrap();
    let second = once.run("order", charge).await.unwrap();
    assert_eq!((first.replayed, second.replayed), (false, true));
    assert_eq!(first.outcome, second.outcome);

    assert_eq!(outcomes.begin("other", OLD).await.unwrap(), Standing::New);
    assert_eq!(outcomes.begin("other", NEW).await.unwrap(), Standing::Running(OLD));
    assert_eq!(outcomes.begin("other", OLD).await.unwrap_err().stale(), Some(STALE));
    assert_eq!(outcomes.finish("other", OLD, b"late").await.unwrap_err().stale(), Some(STALE));
    outcomes.finish("other", NEW, b"done").await.unwrap();
    outcomes.finish("other", NEW, b"done").await.expect("again, after a lost answer");
    assert_eq!(outcomes.standing("other").await.unwrap(), Standing::Finished(b"done".to_vec()));
}

/// Nothing was ever removed: each key stayed in the table for good.
#[tokio::test]
async fn old_outcomes_go_a_few_at_a_time_and_unfinished_work_stays() {
    let (server, db) = postgres().await;
    let outcomes = PostgresOutcomes::new(db);
    server
        .psql(
            "insert into leasehold_fence.outcome (key, token, outcome, changed_at)
             select 'old ' || n, 1, 'done', now() - interval '91 days' from generate_series(1, 40) n;
             insert into leasehold_fence.outcome (key, token, changed_at)
             values ('running', 33, now() - interval '91 days');
             insert into leasehold_fence.outcome (key, token, outcome, changed_at)
             values ('recent', 1, 'done', now() - interval '89 days')",
        )
        .unwrap();
    let left = || -> u32 {
        let left = "select count(*) from leasehold_fence.outcome where key like 'old %'";
        server.psql(left).unwrap().parse().unwrap()
    };
    outcomes.begin("new", NEW).await.unwrap();
    let first = left();
    assert!((1..40).contains(&first), "{first} of 40 are left: all at once, or none");
    for number in 0..20 {
        outcomes.begin(&format!("new {number}"), NEW).await.unwrap();
    }
    assert_eq!(left(), 0);
    assert_eq!(outcomes.standing("running").await.unwrap(), Standing::Running(OLD));
    assert_eq!(outcomes.standing("recent").await.unwrap(), Standing::Finished(b"done".to_vec()));
}
