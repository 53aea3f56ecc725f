//! The models are compared with the code: the same random requests go to the real scripts on a real
//! server and to a model's pure step, and every answer, every message and all that is kept are
//! compared after each of them.
//!
//! The server's clock stands still until a step moves it: nothing here depends on how fast
//! anything is. `MODEL_SEED` chooses other requests, `MODEL_EPISODES` more of them; a difference is
//! told with its seed and with no more steps than it takes.

mod episode;
mod fixture;
mod node;
mod queue;

use episode::{Comparison, compare};
use fixture::Fixture;
use leasehold::backend::{redis, redlock};
use leasehold_models::{queue::node::Rules, quorum::node::Rules as NodeRules};
use node::NodeComparison;
use queue::QueueComparison;

/// Compares all steps; fails with the difference, if there is one.
fn agrees<T: Comparison>(what: &str, comparison: &mut T) {
    let compared = compare(comparison).unwrap_or_else(|difference| panic!("{difference}"));
    println!("{what}: {compared} steps compared, no difference");
}

/// Fails if there is no difference, or one without a step.
fn noticed<T: Comparison>(rule: &str, comparison: &mut T) {
    let Err(difference) = compare(comparison) else {
        panic!("nobody notices that {rule} is left out");
    };
    println!("without {rule}: {difference}");
    assert!(!difference.steps.is_empty(), "it is told what it takes");
}

#[test]
fn the_queue_is_its_model() {
    let mut fixture = Fixture::start(redis::script_text);
    let mut comparison = QueueComparison::new(&mut fixture, Rules::default());
    agrees("queue", &mut comparison);
    comparison.tally().want(&[
        "Claim: granted",
        "Claim: queued",
        "Claim: tombstone",
        "Try: granted",
        "Try: held",
        "Beat: granted",
        "Beat: queued",
        "Beat: unknown",
        "Renew: granted",
        "Renew: not held",
        "Release: done",
        "Release: not held",
        "Leave: done",
        "Settle: granted",
        "Settle: not held",
        "Force: done",
        "Force: not held",
        "passed over",
        "pushed",
    ]);
}

/// A comparison that notices nothing would prove nothing.
#[test]
fn a_queue_with_a_rule_left_out_is_noticed() {
    let right = Rules::default();
    let wrong = [
        ("beat_repairs", Rules { beat_repairs: false, ..right }),
        ("beat_repairs_for_others", Rules { beat_repairs_for_others: false, ..right }),
        ("beat_tells_unknown", Rules { beat_tells_unknown: false, ..right }),
        ("beat_tells_granted", Rules { beat_tells_granted: false, ..right }),
        ("telling_extends", Rules { telling_extends: false, ..right }),
        ("skips_dead", Rules { skips_dead: false, ..right }),
        ("short_grants", Rules { short_grants: false, ..right }),
        ("newcomers_queue", Rules { newcomers_queue: false, ..right }),
    ];
    let mut fixture = Fixture::start(redis::script_text);
    for (rule, rules) in wrong {
        noticed(rule, &mut QueueComparison::new(&mut fixture, rules));
    }
}

#[test]
fn a_redlock_node_is_its_model() {
    let mut fixture = Fixture::start(redlock::script_text);
    let mut comparison = NodeComparison::new(&mut fixture, NodeRules::default());
    agrees("redlock node", &mut comparison);
    comparison.tally().want(&[
        "claim: granted with its guess",
        "claim: granted",
        "claim: held",
        "claim: tombstone",
        "store: yes",
        "store: no",
        "renew: yes",
        "renew: no",
        "release: yes",
        "release: no",
        "notice: yes",
        "notice: no",
        "found: yes",
        "found: no",
        "seal: yes",
        "seal: no",
        "install: yes",
        "install: no",
        "readmit: yes",
        "readmit: no",
        "arrive: yes",
        "restart: trusted",
        "restart: not trusted",
        "record: expired",
        "refused: no member",
        "refused: other epoch",
        "refused: other list",
    ]);
}

/// A comparison that notices nothing would prove nothing.
#[test]
fn a_redlock_node_with_a_rule_left_out_is_noticed() {
    let right = NodeRules::default();
    let wrong = [
        ("store_checks_lock", NodeRules { store_checks_lock: false, ..right }),
        ("strictly_newer", NodeRules { strictly_newer: false, ..right }),
        ("renewal_checks_token", NodeRules { renewal_checks_token: false, ..right }),
        ("renewal_recreates", NodeRules { renewal_recreates: true, ..right }),
        ("counts_by_itself", NodeRules { counts_by_itself: true, ..right }),
        ("run_id", NodeRules { run_id: false, ..right }),
        ("epoch", NodeRules { epoch: false, ..right }),
        ("list", NodeRules { list: false, ..right }),
    ];
    let mut fixture = Fixture::start(redlock::script_text);
    for (rule, rules) in wrong {
        noticed(rule, &mut NodeComparison::new(&mut fixture, rules));
    }
}
