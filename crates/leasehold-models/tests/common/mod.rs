//! A test for every case of a model.

use leasehold_models::catalogue::{self, Case};

/// Explores a case, prints what was seen, and compares it with what must be seen.
pub(crate) fn explore(model: &str, variant: &str) {
    let case = catalogue::find(model, variant).expect("the catalogue has it");
    let outcome = case.run(case.size);
    println!("{}", case.report(&outcome));
    if let Err(why) = case.judge(&outcome) {
        panic!("{why}");
    }
    if case.breaks.is_some() {
        let steps = &outcome.counterexamples[0].steps;
        assert!(steps.len() > 1, "a counterexample is told step by step: {steps:?}");
    } else {
        assert!(outcome.states > 1000, "there is little to see");
    }
}

/// Fails if the catalogue has a case of this model that is not among the tests.
pub(crate) fn compare(model: &str, tested: &[&str]) {
    let of_model = |case: &&Case| case.model == model && case.tested;
    let cases: Vec<&str> = catalogue::all().filter(of_model).map(|case| case.variant).collect();
    assert_eq!(cases, tested, "every case of the catalogue has its test, in the same order");
}

/// A test for every case; and one that none is missing.
macro_rules! cases {
    ($model:literal; $($test:ident: $variant:literal,)*) => {
        $(
            #[test]
            fn $test() {
                $crate::common::explore($model, $variant);
            }
        )*

        #[test]
        fn every_case_is_tested() {
            $crate::common::compare($model, &[$($variant),*]);
        }
    };
}
pub(crate) use cases;
