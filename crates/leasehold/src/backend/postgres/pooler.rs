//! Is a transaction pooler between us and the server? It lends a server's session for one
//! transaction, so two connections of ours meet in the same backend, or one of them changes it.

use super::error::explain;
use super::wire::Session;
use crate::error::Result;

/// How often each of the two is asked. A pooler that hands out the session that was given
/// back last shows at once; one that takes turns, when its turn comes round.
const ROUNDS: usize = 4;

pub(super) async fn between(first: &Session, second: &Session) -> Result<bool> {
    let ask = async |session: &Session| {
        let asked = session.client.query_typed("select pg_backend_pid()", &[]).await;
        let rows = asked.map_err(|error| explain(error, &session.place))?;
        Ok::<i32, crate::Error>(rows.first().map_or(0, |row| row.get(0)))
    };
    let (mut ours, mut theirs) = (vec![first.backend], vec![second.backend]);
    for _ in 0..ROUNDS {
        ours.push(ask(first).await?);
        theirs.push(ask(second).await?);
    }
    let moved = |backends: &[i32]| backends.iter().any(|backend| *backend != backends[0]);
    let shared = ours.iter().any(|backend| theirs.contains(backend));
    Ok(moved(&ours) || moved(&theirs) || shared)
}
