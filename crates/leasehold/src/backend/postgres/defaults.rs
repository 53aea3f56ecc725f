//! What our sessions set for themselves: a role, a database or a server may have other defaults, which
//! are meant for other programs.
//!
//! Not here: `default_transaction_read_only`, which may say that a disk is full, and is refused;
//! `synchronous_commit`, which `doctor` judges. Nothing that we ask depends on the search path, on
//! time zones or on how values are printed.

const FOURTEEN: i32 = 140_000;
const SEVENTEEN: i32 = 170_000;

/// How long a statement may wait for another's row. Two may be in line on one connection, and
/// both take less than a request may, so that their end is known. (A time-out for statements could
/// come before that.)
///
/// A stricter isolation would end what has to wait for a row: `could not serialize access`.
const ALWAYS: &str = "set default_transaction_isolation = 'read committed'; \
                      set lock_timeout = '800ms'; set statement_timeout = 0; \
                      set idle_in_transaction_session_timeout = 0;";

/// The statements that a session of our own begins with, on a server of this version.
pub(super) fn defaults(version: i32) -> String {
    let mut set = ALWAYS.to_owned();
    if version >= FOURTEEN {
        // A session that ends says that its client is gone.
        set.push_str(" set idle_session_timeout = 0;");
    }
    if version >= SEVENTEEN {
        // It ends a session that waits for a lock.
        set.push_str(" set transaction_timeout = 0;");
    }
    set
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_only_told_what_it_knows() {
        let newer = ["idle_session_timeout", "transaction_timeout"];
        for (version, known) in [(130_000, 0), (140_000, 1), (160_004, 1), (170_000, 2)] {
            let told = defaults(version);
            let count = newer.iter().filter(|name| told.contains(&format!("set {name}"))).count();
            assert_eq!(count, known, "{version}: {told}");
        }
    }
}
