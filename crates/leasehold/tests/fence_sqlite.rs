//! SQLite as a fenced resource: a guarded table, conditional rows, transitions, outcomes.
#![cfg(feature = "sqlite")]

use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use leasehold::Token;
use leasehold::fence::sqlite::{self, FencedSqlite, Rows, SqliteOutcomes};
use leasehold::fence::{FenceError, Moved, Once, Outcomes, StaleToken, Standing};
use rusqlite::Connection;
use rusqlite::functions::FunctionFlags;

const OLD: Token = Token::new(33);
const NEW: Token = Token::new(34);
const STALE: StaleToken = StaleToken { given: OLD, seen: NEW };

const WRITES: [&str; 8] = [
    "insert into stock values ('other', 1)",
    "insert or ignore into stock values ('other', 1)",
    "insert or replace into stock values ('item', 1)",
    "insert into stock values ('item', 1) on conflict (item) do update set left = 1",
    "update stock set left = 1",
    "update or replace stock set left = 1",
    "delete from stock",
    "delete from stock where item = 'item'",
];

/// A guarded table with one row that the newer lease wrote.
fn guarded(connection: Connection) -> FencedSqlite {
    connection.execute_batch("create table stock (item text primary key, left integer)").unwrap();
    let mut stock = FencedSqlite::new(connection).unwrap();
    stock.guard_table("stock", "the 'stock'").unwrap();
    let fill = "insert into stock values ('item', 10)";
    stock.transaction(NEW, |tx| Ok(tx.execute(fill, ())?)).unwrap();
    stock
}

fn rows(connection: &Connection) -> Vec<(String, i64)> {
    let mut all = connection.prepare("select item, left from stock").unwrap();
    let rows = all.query_map((), |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.map(Result::unwrap).collect()
}

#[test]
fn no_write_path_of_a_guarded_table_takes_an_old_token_or_none() {
    let mut stock = guarded(Connection::open_in_memory().unwrap());
    for write in WRITES {
        let late = stock.transaction(OLD, |tx| Ok(tx.execute(write, ())?)).unwrap_err();
        assert_eq!(late.stale(), Some(STALE), "{write}");
        let unsigned = stock.connection().execute(write, ()).unwrap_err();
        assert!(unsigned.to_string().contains("no fencing token"), "{write}: {unsigned}");
        assert_eq!(rows(stock.connection()), [("item".to_owned(), 10)], "{write}");
    }
    for write in WRITES {
        stock.transaction(NEW, |tx| Ok(tx.execute(write, ())?)).expect(write);
    }
    assert_eq!(stock.seen("the 'stock'").unwrap(), Some(NEW));
}

#[test]
fn a_program_that_knows_nothing_of_tokens_can_only_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stock.db");
    drop(guarded(Connection::open(&path).unwrap()));
    let shell = |sql: &str| Command::new("sqlite3").arg(&path).arg(sql).output().unwrap();
    for write in WRITES {
        let output = shell(write);
        assert!(!output.status.success(), "{write}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains("leasehold_token"), "{write}: {said}");
    }
    assert_eq!(shell("select left from stock").stdout, b"10\n");
}

#[test]
fn a_token_that_is_no_number_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("stock.db");
    drop(guarded(Connection::open(&path).unwrap()));
    for nonsense in ["99", "", "x"] {
        let connection = Connection::open(&path).unwrap();
        let flags = FunctionFlags::SQLITE_UTF8;
        let token = move |_: &rusqlite::functions::Context<'_>| Ok(nonsense.to_owned());
        connection.create_scalar_function("leasehold_token", 0, flags, token).unwrap();
        let error = connection.execute("update stock set left = 1", ()).unwrap_err();
        assert!(error.to_string().contains("no fencing token"), "{nonsense:?}: {error}");
    }
}

#[test]
fn advancing_shuts_out_the_old_lease_before_the_first_write() {
    let mut stock = guarded(Connection::open_in_memory().unwrap());
    stock.advance("the 'stock'", Token::new(40)).unwrap();
    let late = stock.transaction(NEW, |tx| Ok(tx.execute("delete from stock", ())?)).unwrap_err();
    assert_eq!(late.stale(), Some(StaleToken { given: NEW, seen: Token::new(40) }));
    assert_eq!(stock.advance("the 'stock'", NEW).unwrap_err().stale().unwrap().given, NEW);
    stock.unguard_table("stock").unwrap();
    assert_eq!(stock.connection().execute("delete from stock", ()).unwrap(), 1);
}

#[test]
fn a_failed_transaction_leaves_nothing_behind() {
    let mut stock = guarded(Connection::open_in_memory().unwrap());
    let failed = stock.transaction(Token::new(50), |tx| -> Result<(), FenceError> {
        tx.execute("delete from stock", ())?;
        Err(FenceError::Invalid("the work failed".to_owned()))
    });
    assert!(failed.is_err());
    assert_eq!(rows(stock.connection()), [("item".to_owned(), 10)]);
    assert_eq!(stock.seen("the 'stock'").unwrap(), Some(NEW));
}

fn jobs() -> (Connection, Rows) {
    let connection = Connection::open_in_memory().unwrap();
    sqlite::install(&connection).unwrap();
    let table = "create table jobs (id integer primary key, state text not null default 'NEW', \
                 note text, fence_token integer not null default 0)";
    connection.execute_batch(table).unwrap();
    (connection, Rows::new("jobs", "id"))
}

#[test]
fn rows_take_conditional_writes_and_keep_tombstones() {
    let (db, jobs) = jobs();
    let note = |token, note: &str| sqlite::put(&db, &jobs, &1, token, &[("note", &note)]);
    let missing = sqlite::update(&db, &jobs, &1, OLD, "note = ?3", &[&"x"]).unwrap_err();
    assert!(matches!(missing, FenceError::NotFound { .. }), "{missing}");
    note(OLD, "old").unwrap();
    note(NEW, "new").unwrap();
    assert_eq!(note(OLD, "late").unwrap_err().stale(), Some(STALE));
    let late = sqlite::update(&db, &jobs, &1, OLD, "note = ?3", &[&"late"]).unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    assert_eq!(sqlite::delete(&db, &jobs, &1, OLD).unwrap_err().stale(), Some(STALE));
    sqlite::update(&db, &jobs, &1, NEW, "note = note || ?3", &[&"er"]).unwrap();
    let read = || db.query_row("select note from jobs", (), |row| row.get::<_, String>(0));
    assert_eq!(read().unwrap(), "newer");

    assert!(sqlite::delete(&db, &jobs, &1, NEW).unwrap());
    assert!(!sqlite::delete(&db, &jobs, &1, NEW).unwrap(), "again, after a lost answer");
    assert_eq!(note(OLD, "back from the dead").unwrap_err().stale(), Some(STALE));
    assert!(read().is_err(), "it stays deleted");
    sqlite::put(&db, &jobs, &2, OLD, &[]).unwrap();
    note(NEW, "anew").unwrap();
    assert_eq!(db.query_row("select count(*) from jobs", (), |row| row.get::<_, u32>(0)), Ok(2));
}

/// The mark of a deleted row went by the key's spelling: a late lease brought the row back by
/// another one that the table takes for the same.
#[test]
fn a_deleted_row_does_not_come_back_by_another_spelling_of_its_key() {
    use rusqlite::types::Value;
    let text = |text: &str| Value::Text(text.to_owned());
    let real = Value::Real;
    let integer = Value::Integer;
    for (column, deleted, other) in [
        ("text collate nocase", text("Ada"), text("aDA")),
        ("text collate rtrim", text("ada  "), text("ada")),
        ("text", integer(7), text("7")),
        ("text", real(8.5), text("8.5")),
        ("integer", integer(7), text("7")),
        ("integer", text(" 7.0"), integer(7)),
        ("numeric", real(8.0), integer(8)),
        ("numeric", text("8e0"), integer(8)),
        ("real", integer(8), text("8.0")),
        ("blob", real(8.0), integer(8)),
        ("", real(-0.0), integer(0)),
        ("integer primary key, other integer", text("8"), real(8.0)),
    ] {
        let db = Connection::open_in_memory().unwrap();
        sqlite::install(&db).unwrap();
        let table = format!(
            "create table jobs (id {column}, fence_token integer not null);
             create unique index one on jobs (id)"
        );
        db.execute_batch(&table).unwrap();
        let jobs = Rows::new("main.Jobs", "ID");
        sqlite::put(&db, &jobs, &deleted, NEW, &[]).unwrap();
        sqlite::put(&db, &jobs, &other, NEW, &[]).unwrap();
        let rows = db.query_row("select count(*) from jobs", (), |row| row.get::<_, u32>(0));
        assert_eq!(rows, Ok(1), "{column}: the table takes {deleted:?} for {other:?}");
        assert!(sqlite::delete(&db, &jobs, &deleted, NEW).unwrap(), "{column}: {deleted:?}");
        let back = sqlite::put(&db, &jobs, &other, OLD, &[]);
        assert_eq!(back.unwrap_err().stale(), Some(STALE), "{column}: {deleted:?}, {other:?}");
        let raised = sqlite::advance_row(&db, &jobs, &other, OLD);
        assert_eq!(raised.unwrap_err().stale(), Some(STALE), "{column}: {deleted:?}, {other:?}");
    }
}

/// What the table tells apart has marks of its own.
#[test]
fn keys_that_differ_do_not_share_a_tombstone() {
    for (column, deleted, other) in [
        ("text", "Ada", "ada"),
        ("text", "7", "7.0"),
        ("text collate nocase", "ada ", "ada"),
        ("integer", "7a", "7"),
        ("blob", "7", "7.0"),
    ] {
        let db = Connection::open_in_memory().unwrap();
        sqlite::install(&db).unwrap();
        db.execute_batch(&format!("create table jobs (id {column} unique, fence_token integer)"))
            .unwrap();
        let jobs = Rows::new("jobs", "id");
        assert!(!sqlite::delete(&db, &jobs, &deleted, NEW).unwrap());
        sqlite::put(&db, &jobs, &other, OLD, &[]).unwrap();
    }
}

#[test]
fn a_key_with_a_collation_of_its_own_is_refused() {
    let db = Connection::open_in_memory().unwrap();
    sqlite::install(&db).unwrap();
    db.create_collation("backwards", |one: &str, two: &str| two.cmp(one)).unwrap();
    let table = "create table jobs (id text collate backwards unique, fence_token integer)";
    db.execute_batch(table).unwrap();
    let refused = sqlite::delete(&db, &Rows::new("jobs", "id"), &"a", NEW).unwrap_err();
    assert!(refused.to_string().contains("collation backwards"), "{refused}");
}

#[test]
fn a_transition_happens_once_and_a_dead_worker_is_taken_over() {
    let (db, jobs) = jobs();
    db.execute("insert into jobs (id) values (1)", ()).unwrap();
    let claim = |token| sqlite::claim(&db, &jobs, &1, token, "NEW", "PROCESSING");
    let finish = |token| sqlite::finish(&db, &jobs, &1, token, "PROCESSING", "DONE");
    assert!(matches!(finish(OLD), Err(FenceError::WrongState { found, .. }) if found == "NEW"));
    assert_eq!(claim(OLD).unwrap(), Moved::Now);
    assert_eq!(claim(OLD).unwrap(), Moved::Before);
    assert_eq!(claim(NEW).unwrap(), Moved::Now, "taken over");
    assert_eq!(finish(OLD).unwrap_err().stale(), Some(STALE));
    assert_eq!(finish(NEW).unwrap(), Moved::Now);
    assert_eq!(finish(NEW).unwrap(), Moved::Before);
    let newer = Token::new(35);
    assert!(matches!(claim(newer), Err(FenceError::WrongState { found, .. }) if found == "DONE"));
}

#[tokio::test]
async fn an_outcome_is_remembered_and_a_late_one_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let outcomes = SqliteOutcomes::open(folder.path().join("outcomes.db")).unwrap();
    let locks = leasehold::connect("memory:").await.unwrap();
    let once = Once::new(locks, "charge", outcomes.clone());
    let runs = AtomicU32::new(0);
    let charge = async |_| {
        let run = runs.fetch_add(1, Ordering::Relaxed);
        match run {
            0 => Err(FenceError::Invalid("the card reader is off".to_owned())),
            _ => Ok(format!("receipt {run}").into_bytes()),
        }
    };
    once.run("order", charge).await.expect_err("a failure is no outcome");
    let (first, second) = (once.run("order", charge).await, once.run("order", charge).await);
    assert!(!first.as_ref().unwrap().replayed);
    assert!(second.as_ref().unwrap().replayed);
    assert_eq!(first.unwrap().outcome, b"receipt 1");
    assert_eq!(second.unwrap().outcome, b"receipt 1");

    // A worker that died in the middle, and one that took over.
    assert_eq!(outcomes.begin("other", OLD).await.unwrap(), Standing::New);
    assert_eq!(outcomes.begin("other", NEW).await.unwrap(), Standing::Running(OLD));
    assert_eq!(outcomes.finish("other", OLD, b"late").await.unwrap_err().stale(), Some(STALE));
    outcomes.finish("other", NEW, b"done").await.unwrap();
    outcomes.finish("other", NEW, b"done").await.unwrap();
    assert_eq!(
        outcomes.begin("other", Token::new(9)).await.unwrap(),
        Standing::Finished(b"done".to_vec())
    );
    assert_eq!(once.outcome("other").await.unwrap(), None, "it is not of this prefix");
}

#[test]
fn guarding_replaces_the_guard_and_finds_renamed_tables() {
    let mut stock = guarded(Connection::open_in_memory().unwrap());
    stock.guard_table("stock", "other").unwrap();
    stock.advance("other", NEW).unwrap();
    let delete = "delete from stock";
    let late = stock.transaction(OLD, |tx| Ok(tx.execute(delete, ())?)).unwrap_err();
    assert_eq!(late.stale(), Some(STALE), "the mark of the other resource counts");

    let rename = "alter table stock rename to old_stock;
                  create table stock (item text primary key, left integer)";
    stock.connection().execute_batch(rename).unwrap();
    stock.guard_table("Stock", "other").unwrap();
    for table in ["stock", "old_stock"] {
        let delete = format!("insert into {table} values ('x', 1)");
        assert!(stock.connection().execute(&delete, ()).is_err(), "{table}");
        stock.unguard_table(table).unwrap();
        stock.connection().execute(&delete, ()).unwrap();
        let nothing = stock.unguard_table(table).unwrap_err();
        assert!(matches!(nothing, FenceError::NotFound { .. }), "{nothing}");
    }
    assert!(stock.guard_table("missing", "other").is_err());
    assert!(stock.connection().is_autocommit());
}

#[test]
fn a_delete_that_cannot_be_committed_leaves_no_transaction_open() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("jobs.db");
    let db = Connection::open(&path).unwrap();
    sqlite::install(&db).unwrap();
    db.execute_batch(
        "create table jobs (id integer primary key, fence_token integer not null);
         insert into jobs values (1, 0)",
    )
    .unwrap();
    db.busy_timeout(std::time::Duration::ZERO).unwrap();
    // Somebody reads: without a write-ahead log nobody can commit meanwhile.
    let reader = Connection::open(&path).unwrap();
    reader.execute_batch("begin").unwrap();
    let count = |db: &Connection| db.query_row("select count(*) from jobs", (), |row| row.get(0));
    assert_eq!(count(&reader), Ok(1));
    let jobs = Rows::new("jobs", "id");
    assert!(sqlite::delete(&db, &jobs, &1, NEW).is_err());
    assert!(db.is_autocommit(), "no savepoint is left open");
    reader.execute_batch("commit").unwrap();
    assert!(sqlite::delete(&db, &jobs, &1, NEW).unwrap());
    assert_eq!(count(&reader), Ok(0));
}

#[test]
fn advancing_a_row_shuts_older_leases_out_before_the_first_write() {
    let (db, jobs) = jobs();
    db.execute("insert into jobs (id) values (1)", ()).unwrap();
    sqlite::advance_row(&db, &jobs, &1, NEW).unwrap();
    sqlite::advance_row(&db, &Rows::new("main.JOBS", "id"), &2, NEW).unwrap();
    let late = [
        sqlite::update(&db, &jobs, &1, OLD, "note = ?3", &[&"late"]).unwrap_err(),
        sqlite::claim(&db, &jobs, &1, OLD, "NEW", "PROCESSING").unwrap_err(),
        sqlite::put(&db, &jobs, &2, OLD, &[]).unwrap_err(),
        sqlite::advance_row(&db, &jobs, &1, OLD).unwrap_err(),
    ];
    assert_eq!(late.map(|late| late.stale()), [Some(STALE); 4]);
    sqlite::update(&db, &jobs, &1, NEW, "note = ?3", &[&"new"]).unwrap();
}
