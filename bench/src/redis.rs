//! Redis: ours beside the least that the same driver can do, in the same run.

use anyhow::Result;

use crate::Plan;
use crate::report::Table;

use server::Server;

mod crowd;
mod handover;
mod holding;
mod pairs;
pub(crate) mod peers;
pub(crate) mod raw;
pub(crate) mod server;

/// All tables of Redis, on one server of their own.
pub(crate) fn run(plan: &Plan) -> Result<Vec<Table>> {
    let server = Server::start()?;
    Ok(vec![
        pairs::run(plan, &server)?,
        handover::run(plan, &server)?,
        crowd::run(plan, &server)?,
        holding::run(plan, &server)?,
    ])
}
