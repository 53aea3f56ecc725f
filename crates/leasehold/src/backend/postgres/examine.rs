//! What `doctor` shows of a PostgreSQL server.

use super::connection::{Session, odd_answer};
use super::schema;
use crate::backend::Finding;
use crate::error::Result;

const SETTINGS: &str = include_str!("sql/examine.sql");

/// How far the sequence of session mode is ahead of the clock, in seconds.
const AHEAD: &str = "select (coalesce(last_value, 0) / 1e6)::float8 \
                     - date_part('epoch', clock_timestamp()) \
                     from pg_sequences where schemaname = 'leasehold' and sequencename = 'tokens'";

/// Every session lifts the sequence to the clock, and no further: it is never ahead for long.
const FAR_AHEAD: f64 = 60.0;

/// What the server's settings mean for locks.
pub(super) async fn server(session: &Session) -> Result<Vec<Finding>> {
    let row = session.ask(SETTINGS).await?.ok_or_else(odd_answer)?;
    let text = |at: usize| row.get::<_, Option<String>>(at).unwrap_or_default();
    let schema = schema::version(session).await?;
    let mut findings = vec![
        Finding::fine(format!("PostgreSQL {} at {}, a primary", text(0), session.place)),
        Finding::fine(match schema {
            Some(version) => format!("schema leasehold, version {version} of {}", schema::VERSION),
            None => "schema leasehold is not there yet".to_owned(),
        }),
        fsync(&text(1), &text(2)),
        commit(&text(3)),
        standbys((row.get(5), row.get(6)), &text(4), &text(3)),
    ];
    let ahead: f64 = row.get(7);
    if ahead.abs() > 5.0 {
        findings.push(Finding::warning(
            format!("the last token is {ahead:.0} s ahead of the database's clock"),
            "its clock was set back: tokens go on rising, but look after the clock",
        ));
    }
    Ok(findings)
}

/// Whether waiters are woken, or have to look.
pub(super) fn listening(pooled: bool, elsewhere: bool) -> Finding {
    match (pooled, elsewhere) {
        (false, _) => Finding::fine("waiters are woken by NOTIFY"),
        (true, true) => Finding::fine("a transaction pooler is in front; LISTEN goes around it"),
        (true, false) => Finding::warning(
            "a transaction pooler is in front, through which nobody can LISTEN: waiters look ten \
             times a second",
            "give the server's own address as listen=HOST:PORT, or connect without the pooler",
        ),
    }
}

/// Whether the server lets go of a client that is stopped, not only of one that is gone.
pub(super) fn letting_go(version: i32) -> Finding {
    if version >= 140_000 {
        return Finding::fine("the server ends a session that is silent for one and a half TTLs");
    }
    Finding::warning(
        "this server knows no idle_session_timeout: it keeps the locks of a client that is \
         stopped (not gone) for as long as it is",
        "PostgreSQL 14 or newer lets go of it after one and a half TTLs",
    )
}

/// Whether the tokens of session mode have run away from the clock, which is what keeps them
/// rising over a fail-over.
pub(super) async fn tokens(session: &Session) -> Result<Finding> {
    let ahead: f64 = session.ask(AHEAD).await?.ok_or_else(odd_answer)?.get(0);
    if ahead <= FAR_AHEAD {
        return Ok(Finding::fine("the sequence of tokens goes with the database's clock"));
    }
    Ok(Finding::warning(
        format!("the sequence leasehold.tokens is {ahead:.0} s ahead of the database's clock"),
        "until the clock has caught up, tokens may fall when a standby that lags is promoted. The \
         clock was set back, or an older leasehold raised the sequence: use the newest everywhere",
    ))
}

fn fsync(fsync: &str, full_page_writes: &str) -> Finding {
    if (fsync, full_page_writes) == ("on", "on") {
        return Finding::fine("fsync and full_page_writes are on");
    }
    Finding::danger(
        format!("fsync is {fsync}, full_page_writes is {full_page_writes}"),
        "a crash of the machine can lose locks that are held, or the database: turn both on",
    )
}

fn commit(synchronous: &str) -> Finding {
    let what = format!("synchronous_commit is {synchronous}");
    if synchronous != "off" {
        return Finding::fine(what);
    }
    let advice = "a crash forgets locks that were granted in the last moments: set it to on for \
                  this role (alter role … set synchronous_commit = on)";
    Finding::danger(what, advice)
}

fn standbys((all, synchronous): (i64, i64), names: &str, commit: &str) -> Finding {
    if all == 0 && names.is_empty() {
        return Finding::fine("no standby: nothing to fail over to, nothing to lose by it");
    }
    let what = format!("{all} standbys, {synchronous} of them synchronous");
    if names.is_empty() || matches!(commit, "off" | "local") {
        return Finding::warning(
            what,
            "a fail-over may forget locks that are held (tokens go on rising by the clock): name \
             them in synchronous_standby_names, with synchronous_commit on",
        );
    }
    Finding::fine(what)
}
