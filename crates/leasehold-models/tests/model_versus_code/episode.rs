//! Random steps, in episodes that begin with nothing; and what is told of one that ends in a
//! difference: its seed, and the steps that it takes.

use std::collections::BTreeMap;
use std::env;
use std::fmt;

/// How many steps an episode has: few enough to try which of them matter.
const LENGTH: usize = 150;
/// How many episodes there are, unless `MODEL_EPISODES` says otherwise.
const EPISODES: u64 = 80;
// At least ten thousand steps are compared.
const _: () = assert!(EPISODES * LENGTH as u64 >= 10_000);
/// Where random numbers begin, unless `MODEL_SEED` says otherwise.
const SEED: u64 = 0x1ea5_e401d;

/// Two that are to be the same.
pub(crate) trait Comparison {
    /// What is done to both.
    type Step: fmt::Debug + Clone;

    /// Something to do.
    fn random(&self, random: &mut fastrand::Rng) -> Self::Step;

    /// Does all of it to both, from the beginning.
    fn replay(&mut self, steps: &[Self::Step]) -> Result<(), Gap>;

    /// What came of it so far.
    fn tally(&self) -> &Tally;
}

/// How often what came of steps.
#[derive(Debug, Default)]
pub(crate) struct Tally(BTreeMap<String, usize>);

impl Tally {
    /// It came to this once more.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        *self.0.entry(what.into()).or_default() += 1;
    }

    /// Prints how often; fails if one of these is rare: where little happens, there is little
    /// to compare.
    pub(crate) fn want(&self, all: &[&str]) {
        for (what, count) in &self.0 {
            println!("  {count:>6} {what}");
        }
        // Whoever chooses the steps knows what is rare among them.
        let whole = number("MODEL_EPISODES").is_none();
        for what in all.iter().filter(|_| whole) {
            let count = self.0.get(*what).copied().unwrap_or(0);
            assert!(count >= 5, "{what}: only {count}");
        }
    }
}

/// Where the two are not the same.
#[derive(Debug)]
pub(crate) struct Gap {
    /// After how many steps.
    pub(crate) after: usize,
    /// What was compared, and what either had.
    pub(crate) what: String,
}

/// What is told of it.
#[derive(Debug)]
pub(crate) struct Difference {
    seed: u64,
    what: String,
    pub(crate) steps: Vec<String>,
}

/// Runs all episodes; how many steps were compared.
pub(crate) fn compare<T: Comparison>(comparison: &mut T) -> Result<usize, Difference> {
    let seed = number("MODEL_SEED").unwrap_or(SEED);
    let episodes = number("MODEL_EPISODES").unwrap_or(EPISODES);
    let mut compared = 0;
    for seed in seed..seed + episodes {
        let mut random = fastrand::Rng::with_seed(seed);
        let steps: Vec<T::Step> = (0..LENGTH).map(|_| comparison.random(&mut random)).collect();
        if let Err(gap) = comparison.replay(&steps) {
            return Err(shrink(comparison, seed, steps, gap));
        }
        compared += steps.len();
    }
    Ok(compared)
}

/// Leaves out what it does not take.
fn shrink<T: Comparison>(
    comparison: &mut T,
    seed: u64,
    mut steps: Vec<T::Step>,
    gap: Gap,
) -> Difference {
    steps.truncate(gap.after);
    let mut what = gap.what;
    // What mattered at first may not, when others are left out.
    let mut before = usize::MAX;
    while steps.len() < before {
        before = steps.len();
        let mut at = steps.len();
        while at > 0 {
            at -= 1;
            let mut fewer = steps.clone();
            fewer.remove(at);
            if let Err(gap) = comparison.replay(&fewer) {
                fewer.truncate(gap.after);
                at = at.min(fewer.len());
                steps = fewer;
                what = gap.what;
            }
        }
    }
    let steps = steps.iter().map(|step| format!("{step:?}")).collect();
    Difference { seed, what, steps }
}

fn number(variable: &str) -> Option<u64> {
    let value = env::var(variable).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{variable} is to be a number, not {value:?}")))
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "they differ (MODEL_SEED={} MODEL_EPISODES=1):", self.seed)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {:>4}. {step}", number + 1)?;
        }
        write!(f, "{}", self.what)
    }
}

/// Fails with both, if they are not the same.
pub(crate) fn same<T: fmt::Debug + PartialEq>(
    what: &str,
    expected: &T,
    seen: &T,
) -> Result<(), String> {
    if expected == seen {
        return Ok(());
    }
    Err(format!("{what}\n  model:  {expected:?}\n  server: {seen:?}"))
}
