//! The resource side on real servers.

#![cfg(feature = "suite")]

mod concurrency;
mod guard;
mod guard_rows;
mod objects;
mod redis;
mod renames;
mod rows;
mod transitions;

use std::sync::Arc;

use leasehold::Token;
use leasehold::fence::StaleToken;
use leasehold_faults::servers::Postgres;
use tokio_postgres::{Client, NoTls};

const OLD: Token = Token::new(33);
const NEW: Token = Token::new(34);
const STALE: StaleToken = StaleToken { given: OLD, seen: NEW };

/// A client whose connection is driven in the background.
async fn connect(url: &str) -> Arc<Client> {
    Arc::new(connect_alone(url).await)
}

async fn connect_alone(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.expect("a connection");
    tokio::spawn(async move {
        // Its end is seen by whoever uses the client.
        let _ = connection.await;
    });
    client
}

/// A server with the fence installed.
async fn postgres() -> (Postgres, Arc<Client>) {
    let server = Postgres::start(&["fsync=off"]).expect("PostgreSQL");
    let client = connect(&server.url()).await;
    leasehold::fence::postgres::install(&*client).await.expect("the schema");
    (server, client)
}

/// A transaction that presents this token, as psql would send it.
fn with_token(token: u64, sql: &str) -> String {
    format!("begin; select set_config('leasehold.token', '{token}', true); {sql}; commit")
}
