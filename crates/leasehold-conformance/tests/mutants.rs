//! The suite must reject every mutant, or it proves nothing.

use leasehold_conformance::cases::CASES;
use leasehold_conformance::fixture::Fixture;
use leasehold_conformance::mutants::Mutant;
use leasehold_conformance::stores;

/// Runs the case that must reject the mutant, and tells whether it does.
fn rejects(mutant: Mutant) -> bool {
    let case = CASES.iter().find(|case| case.name == mutant.rejected_by());
    let case = *case.expect("the case exists");
    let judging = std::thread::spawn(move || {
        // One thread: otherwise the keeper's timer may hide that a call did not look at
        // the clock itself.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let fixture = Fixture::new(stores::memory(), Some(mutant));
            (case.run)(&fixture).await;
        });
    });
    judging.join().is_err()
}

#[test]
fn every_mutant_is_rejected() {
    let judges = Mutant::all().into_iter().map(|mutant| {
        // Most of them wait in vain for something: let them do it together.
        std::thread::spawn(move || (mutant, rejects(mutant)))
    });
    let judges: Vec<_> = judges.collect();
    let verdicts: Vec<_> = judges.into_iter().map(|judge| judge.join().unwrap()).collect();
    let passed: Vec<_> = verdicts.iter().filter(|(_, rejected)| !rejected).collect();
    assert!(verdicts.len() >= 10);
    assert!(passed.is_empty(), "the suite lets these pass: {passed:?}");
}
