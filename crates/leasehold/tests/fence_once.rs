//! What `Once` remembers has a bounded life.
#![cfg(feature = "sqlite")]

use leasehold::Token;
use leasehold::fence::sqlite::SqliteOutcomes;
use leasehold::fence::{Outcomes, Standing};
use rusqlite::Connection;

const TOKEN: Token = Token::new(33);

/// Nothing was ever removed: each key stayed in the table for good.
#[tokio::test]
async fn old_outcomes_go_a_few_at_a_time_and_unfinished_work_stays() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("outcomes.db");
    let outcomes = SqliteOutcomes::open(&path).unwrap();
    let done = async |key: &str| {
        outcomes.begin(key, TOKEN).await.unwrap();
        outcomes.finish(key, TOKEN, b"done").await.unwrap();
    };
    for number in 0..40 {
        done(&format!("old {number}")).await;
    }
    outcomes.begin("running", TOKEN).await.unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute("update leasehold_outcome set changed_at = datetime('now', '-91 days')", ())
        .unwrap();
    done("recent").await;

    let left = || {
        let sql = "select count(*) from leasehold_outcome where key like 'old %'";
        other.query_row(sql, (), |row| row.get::<_, u32>(0)).unwrap()
    };
    let first = left();
    assert!((1..40).contains(&first), "{first} of 40 are left: all at once, or none");
    for number in 0..20 {
        outcomes.begin(&format!("new {number}"), TOKEN).await.unwrap();
    }
    assert_eq!(left(), 0);
    assert_eq!(outcomes.standing("running").await.unwrap(), Standing::Running(TOKEN));
    let recent = outcomes.standing("recent").await.unwrap();
    assert_eq!(recent, Standing::Finished(b"done".to_vec()));
}
