//! The models are tied to the code: the same random requests go to the real scripts on a real
//! server and to a model's pure step, and every answer, every message and all that is kept are
//! compared after each of them.
//!
//! The server's clock stands still until a step moves it: nothing here depends on how fast
//! anything is. `TIE_SEED` chooses other requests, `TIE_EPISODES` more of them; a difference is
//! told with its seed and with no more steps than it takes.

mod episode;
mod line;
mod world;

use episode::{Tie, compare};
use leasehold_lab::line::node::Rules;
use line::LineTie;
use world::World;

/// At least this many steps are compared.
const STEPS: usize = 10_000;

#[test]
fn the_line_is_its_model() {
    let mut world = World::start(leasehold::backend::redis::script_text);
    let compared = compare(&mut LineTie::new(&mut world, Rules::default()))
        .unwrap_or_else(|difference| panic!("{difference}"));
    println!("line: {compared} steps compared, no difference");
    assert!(compared >= STEPS, "{compared} steps are too few");
}

/// A comparison that notices nothing would prove nothing.
#[test]
fn a_line_with_a_rule_left_out_is_noticed() {
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
    let mut world = World::start(leasehold::backend::redis::script_text);
    for (rule, rules) in wrong {
        let Err(difference) = compare(&mut LineTie::new(&mut world, rules)) else {
            panic!("nobody notices that {rule} is left out");
        };
        println!("without {rule}: {difference}");
        assert!(!difference.steps.is_empty());
    }
}
