//! Taking a lock away from its holder: recorded, and told to both sides.

use rusqlite::params;

use super::bell::Ring;
use super::connection::Session;
use super::error::Fault;
use crate::loss::Forced;
use crate::name::Name;
use crate::token::Token;

pub(super) fn force_release(
    session: &mut Session,
    name: &Name,
    forced: &Forced,
) -> Result<Option<Token>, Fault> {
    session.write(|session| {
        let now = session.clock.now();
        let row = session.lock_row(name)?.filter(|row| row.is_live(now));
        let held = row.and_then(|row| Some((row.owner?, row.token, row.client)));
        if let Some((owner, token, client)) = held {
            let record = "insert into audit (at, lock, owner, token, by, reason) \
                          values (?1, ?2, ?3, ?4, ?5, ?6)";
            session.prepare(record)?.execute(params![
                session.clock.wall_micros() as i64,
                name.as_str(),
                owner.to_bytes(),
                token.get() as i64,
                forced.by,
                forced.reason
            ])?;
            session.write_free(name, now)?;
            if let Some(client) = session.client(client)? {
                session.rings.push(Ring { bell: client.bell, owner });
            }
        }
        session.serve(name, now)?;
        Ok(held.map(|(_, token, _)| token))
    })
}
