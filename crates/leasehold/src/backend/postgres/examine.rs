//! What `doctor` shows of a PostgreSQL server.

use super::error::explain;
use super::schema;
use super::wire::Session;
use crate::backend::{Finding, Severity};
use crate::error::Result;

const SETTINGS: &str = include_str!("examine.sql");

/// How far the sequence of session mode is ahead of the clock, in seconds.
const AHEAD: &str = "select (coalesce(last_value, 0) / 1e6)::float8 \
                     - date_part('epoch', clock_timestamp()) \
                     from pg_sequences where schemaname = 'leasehold' and sequencename = 'tokens'";

/// Every session lifts the sequence to the clock, and no further: it is never ahead for long.
const FAR_AHEAD: f64 = 60.0;

/// What the server's settings mean for locks.
pub(super) async fn server(session: &Session) -> Result<Vec<Finding>> {
    let asked = session.client.query_typed(SETTINGS, &[]).await;
    let rows = asked.map_err(|error| explain(error, &session.place))?;
    let Some(row) = rows.first() else { return Err(super::wire::odd_answer()) };
    let text = |at: usize| row.get::<_, Option<String>>(at).unwrap_or_default();
    let schema = schema::version(session).await?;
    let replicas: (i64, i64) = (row.get(5), row.get(6));
    let mut findings = vec![
        fine(format!("PostgreSQL {} at {}, a primary", text(0), session.place)),
        fine(match schema {
            Some(version) => format!("schema leasehold, version {version} of {}", schema::VERSION),
            None => "schema leasehold is not there yet".to_owned(),
        }),
        fsync(&text(1), &text(2)),
        commit(&text(3)),
        standbys(replicas, &text(4), &text(3)),
    ];
    findings.extend(clock(row.get(7)));
    Ok(findings)
}

/// Whether waiters are woken, or have to look.
pub(super) fn listening(pooled: bool, elsewhere: bool) -> Finding {
    match (pooled, elsewhere) {
        (false, _) => fine("waiters are woken by NOTIFY".to_owned()),
        (true, true) => fine("a transaction pooler is in front; LISTEN goes around it".to_owned()),
        (true, false) => Finding::new(
            Severity::Warning,
            "a transaction pooler is in front, through which nobody can LISTEN: waiters look ten \
             times a second",
            "give the server's own address as listen=HOST:PORT, or connect without the pooler",
        ),
    }
}

/// Whether the server lets go of a client that is stopped, not only of one that is gone.
pub(super) fn letting_go(version: i32) -> Finding {
    if version >= 140_000 {
        return fine("the server ends a session that is silent for one and a half TTLs".to_owned());
    }
    Finding::new(
        Severity::Warning,
        "this server knows no idle_session_timeout: it keeps the locks of a client that is \
         stopped (not gone) for as long as it is",
        "PostgreSQL 14 or newer lets go of it after one and a half TTLs",
    )
}

/// Whether the tokens of session mode have run away from the clock, which is what keeps them
/// rising over a fail-over.
pub(super) async fn tokens(session: &Session) -> Result<Finding> {
    let asked = session.client.query_typed(AHEAD, &[]).await;
    let rows = asked.map_err(|error| explain(error, &session.place))?;
    let Some(row) = rows.first() else { return Err(super::wire::odd_answer()) };
    let ahead: f64 = row.get(0);
    if ahead <= FAR_AHEAD {
        return Ok(fine("the sequence of tokens goes with the database's clock".to_owned()));
    }
    Ok(Finding::new(
        Severity::Warning,
        format!("the sequence leasehold.tokens is {ahead:.0} s ahead of the database's clock"),
        "until the clock has caught up, tokens may fall when a standby that lags is promoted. The \
         clock was set back, or an older leasehold raised the sequence: use the newest everywhere",
    ))
}

fn fine(what: String) -> Finding {
    Finding::new(Severity::Fine, what, "")
}

fn fsync(fsync: &str, full_page_writes: &str) -> Finding {
    match (fsync, full_page_writes) {
        ("on", "on") => fine("fsync and full_page_writes are on".to_owned()),
        _ => Finding::new(
            Severity::Unsafe,
            format!("fsync is {fsync}, full_page_writes is {full_page_writes}"),
            "a crash of the machine can lose locks that are held, or the database: turn both on",
        ),
    }
}

fn commit(synchronous: &str) -> Finding {
    let what = format!("synchronous_commit is {synchronous}");
    match synchronous {
        "off" => Finding::new(
            Severity::Unsafe,
            what,
            "a crash forgets locks that were granted in the last moments: set it to on for this \
             role (alter role … set synchronous_commit = on)",
        ),
        _ => fine(what),
    }
}

fn standbys((all, synchronous): (i64, i64), names: &str, commit: &str) -> Finding {
    if all == 0 && names.is_empty() {
        return fine("no standby: nothing to fail over to, nothing to lose by it".to_owned());
    }
    let what = format!("{all} standbys, {synchronous} of them synchronous");
    if names.is_empty() || matches!(commit, "off" | "local") {
        return Finding::new(
            Severity::Warning,
            what,
            "a fail-over may forget locks that are held (tokens go on rising by the clock): name \
             them in synchronous_standby_names, with synchronous_commit on",
        );
    }
    fine(what)
}

fn clock(behind: f64) -> Option<Finding> {
    (behind.abs() > 5.0).then(|| {
        Finding::new(
            Severity::Warning,
            format!("the last token is {behind:.0} s ahead of the database's clock"),
            "its clock was set back: tokens go on rising, but look after the clock",
        )
    })
}
