//! The tables: created when they are first needed, or by hand.

use tokio_postgres::error::SqlState;

use super::error::explain;
use super::wire::Session;
use crate::error::{Error, ErrorKind, Result};

/// The version of [`SCHEMA`].
pub(super) const VERSION: i32 = 1;

/// What has to be there, as SQL that can be run by hand. Running it again changes nothing.
pub const SCHEMA: &str =
    concat!(include_str!("schema/tables.sql"), "\n", include_str!("schema/functions.sql"));

/// Two clients that come first at once must not create it twice.
const ALONE: &str = "select pg_advisory_xact_lock(hashtextextended('leasehold.schema', 0));\n";

/// Makes sure that the tables are there, of this version.
pub(super) async fn ensure(session: &Session) -> Result<()> {
    match version(session).await? {
        Some(VERSION) => Ok(()),
        Some(other) => {
            let message = format!(
                "the tables in schema leasehold at {} are of version {other}, this program knows \
                 {VERSION}; use the newest leasehold everywhere",
                session.place
            );
            Err(Error::new(ErrorKind::Unusable, message))
        }
        None => {
            let create = format!("begin;\n{ALONE}{SCHEMA}\ncommit;");
            let created = session.client.batch_execute(&create).await;
            if created.is_err() {
                let _ = session.client.batch_execute("rollback").await;
            }
            created.map_err(|error| explain(error, &session.place))
        }
    }
}

/// `None` if they are not there, or not all of them.
pub(super) async fn version(session: &Session) -> Result<Option<i32>> {
    let asked = session.client.query_typed("select version from leasehold.meta", &[]).await;
    match asked {
        Ok(rows) => Ok(rows.first().map(|row| row.get(0))),
        Err(error) => match error.code() {
            Some(code)
                if *code == SqlState::UNDEFINED_TABLE || *code == SqlState::INVALID_SCHEMA_NAME =>
            {
                Ok(None)
            }
            _ => Err(explain(error, &session.place)),
        },
    }
}
