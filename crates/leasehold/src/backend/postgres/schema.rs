//! The tables and functions: created when they are first needed, or by hand.
//!
//! The *version* is that of the tables and of what the functions take and give: all programs
//! on one database have the same. The *revision* is that of what the functions do inside; a
//! program brings an older one up to date, and gets on with a newer one.

use super::connection::Session;
use crate::error::{Error, ErrorKind, Result};

/// The version of [`SCHEMA`].
pub(super) const VERSION: i32 = 1;

/// The revision of its functions, as `leasehold.revision()` tells it: to be raised with every
/// change of `functions.sql` or `sweep.sql`.
const REVISION: i32 = 8;

/// What was installed before functions told their revision.
const UNTOLD: i32 = 1;

const FUNCTIONS: &str =
    concat!(include_str!("sql/sweep.sql"), "\n", include_str!("sql/functions.sql"));

/// What has to be there, as SQL that can be run by hand. Running it again changes nothing.
pub const SCHEMA: &str = concat!(
    include_str!("sql/tables.sql"),
    "\n",
    include_str!("sql/sweep.sql"),
    "\n",
    include_str!("sql/functions.sql")
);

/// Two clients that come first at once must not create it twice, and an older one must not
/// replace what a newer one just brought. (None waits for ever: there may be a transaction in
/// the way that nobody ends.) With a stricter isolation, what the other one brought could not be
/// seen by one that waited for it.
const ALONE: &str = "begin isolation level read committed; \
     set local lock_timeout = '10s'; set local statement_timeout = 0; \
     select pg_advisory_xact_lock(hashtextextended('leasehold.schema', 0))";

/// Makes sure that the tables are there, of this version, and the functions of this revision.
pub(super) async fn ensure(session: &Session) -> Result<()> {
    if missing(session).await?.is_none() {
        return Ok(());
    }
    let made = async {
        session.run(ALONE).await?;
        // Perhaps another was here meanwhile.
        if let Some(missing) = missing(session).await? {
            session.run(missing).await?;
        }
        session.run("commit").await
    };
    let made = made.await;
    if made.is_err() {
        let _ = session.run("rollback").await;
    }
    made
}

/// What has to be run, if anything.
async fn missing(session: &Session) -> Result<Option<&'static str>> {
    match version(session).await? {
        None => Ok(Some(SCHEMA)),
        Some(VERSION) => Ok((revision(session).await? < REVISION).then_some(FUNCTIONS)),
        Some(other) => {
            let message = format!(
                "the tables in schema leasehold at {} are of version {other}, this program knows \
                 {VERSION}; use the newest leasehold everywhere",
                session.place
            );
            Err(Error::new(ErrorKind::Unusable, message).not_applied())
        }
    }
}

/// `None` if the tables are not there, or not all of them.
pub(super) async fn version(session: &Session) -> Result<Option<i32>> {
    ask(session, "to_regclass('leasehold.meta')", "select version from leasehold.meta").await
}

/// Of the functions that are installed.
async fn revision(session: &Session) -> Result<i32> {
    let function = "to_regprocedure('leasehold.revision()')";
    Ok(ask(session, function, "select leasehold.revision()").await?.unwrap_or(UNTOLD))
}

/// The one number that this asks for, if there is one, and what it is asked of.
async fn ask(session: &Session, of: &str, sql: &str) -> Result<Option<i32>> {
    let there = session.ask(&format!("select {of} is not null")).await?;
    match there.is_some_and(|row| row.get(0)) {
        true => Ok(session.ask(sql).await?.and_then(|row| row.get(0))),
        false => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_functions_tell_the_revision_that_is_expected_of_them() {
        let told = format!(
            "leasehold.revision() returns integer\nlanguage sql immutable as $$ select {REVISION} $$"
        );
        assert!(FUNCTIONS.contains(&told));
    }
}
