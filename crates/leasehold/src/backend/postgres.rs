//! PostgreSQL: leases in a table, or advisory locks of a session.
//!
//! * `postgres://…` or `…?mode=lease`: a row for each lock, owner, token and expiry by the
//!   database's clock. What is in flight together shares one statement and one commit.
//! * `…?mode=session`: advisory locks, which end with the connection that holds them.
//!
//! [`acquire_in_transaction`] locks inside a transaction of the caller's own.

use std::sync::Arc;

use self::lease::LeaseStore;
use self::session::SessionStore;
use self::url::{Mode, Settings};
use crate::backend::Backend;
use crate::clock::Clock;
use crate::error::{Operation, Result};

mod connection;
mod connector;
mod error;
mod examine;
mod key;
mod lease;
mod schema;
mod session;
mod tls;
mod transaction;
mod url;

pub use schema::SCHEMA;
pub use transaction::{acquire_in_transaction, try_acquire_in_transaction};

/// Its name in errors and guarantees.
const STORE: &str = "postgres";

/// Opens the store behind this URL. Must be called inside a tokio runtime.
///
/// # Errors
///
/// `Invalid` for a URL that cannot work, `Unreachable` when no server answers, `Unusable` for a
/// user, password or database that the server does not accept, `Refused` for a standby, a role that
/// may not use the tables, or a pooler where a session is needed.
pub async fn open(url: &str, clock: Clock) -> Result<Arc<dyn Backend>> {
    let opened = async {
        let settings = Arc::new(Settings::parse(url)?);
        match settings.mode {
            Mode::Lease => Ok(LeaseStore::open(settings, clock).await? as Arc<dyn Backend>),
            Mode::Session => Ok(SessionStore::open(settings, clock).await? as Arc<dyn Backend>),
        }
    };
    opened
        .await
        .map_err(|error: crate::Error| error.on_store(STORE).during(Operation::Connect, None))
}
