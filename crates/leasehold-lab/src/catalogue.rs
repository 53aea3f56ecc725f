//! Every model and every variant of it, by name.

use crate::check::Outcome;
use crate::{quorum, recovery};

/// One thing that can be explored: a model as it should be, or with one rule left out.
#[derive(Debug, Clone, Copy)]
pub struct Case {
    /// The model.
    pub model: &'static str,
    /// Which variant of it.
    pub variant: &'static str,
    /// What is explored, or what is left out.
    pub what: &'static str,
    /// The property that it must break; `None` for what must hold.
    pub breaks: Option<&'static str>,
    /// How big it is unless told otherwise.
    pub size: Size,
    /// Explores it.
    pub explore: fn(Size) -> Outcome,
}

/// How big a model is. What a model has none of, it ignores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Size {
    /// How many nodes.
    pub nodes: usize,
    /// How many attempts, or waiters.
    pub attempts: usize,
}

impl Size {
    /// So many nodes, so many attempts.
    pub const fn new(nodes: usize, attempts: usize) -> Self {
        Self { nodes, attempts }
    }
}

impl Case {
    /// Something that must hold.
    pub const fn sound(
        model: &'static str,
        variant: &'static str,
        what: &'static str,
        size: Size,
        explore: fn(Size) -> Outcome,
    ) -> Self {
        Self { model, variant, what, breaks: None, size, explore }
    }

    /// Something that must break this property.
    pub const fn broken(
        model: &'static str,
        variant: &'static str,
        what: &'static str,
        breaks: &'static str,
        size: Size,
        explore: fn(Size) -> Outcome,
    ) -> Self {
        Self { model, variant, what, breaks: Some(breaks), size, explore }
    }

    /// Explores it at its usual size, prints what was seen, and compares it with what must be.
    pub fn run(&self) -> Result<Outcome, String> {
        self.run_at(self.size)
    }

    /// The same at another size.
    pub fn run_at(&self, size: Size) -> Result<Outcome, String> {
        let outcome = (self.explore)(size);
        println!("{} {}: {}\n{outcome}", self.model, self.variant, self.what);
        let as_expected = match self.breaks {
            None => outcome.holds(),
            Some(property) => outcome.broken() == Some(property),
        };
        match (as_expected, self.breaks) {
            (true, _) => Ok(outcome),
            (false, None) => Err(format!("{} {} does not hold", self.model, self.variant)),
            (false, Some(property)) => Err(format!(
                "{} {} was to break \"{property}\", but broke {:?}",
                self.model,
                self.variant,
                outcome.broken()
            )),
        }
    }
}

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [quorum::cases::CASES, recovery::CASES].into_iter().flatten()
}

/// The case of this name.
pub fn find(model: &str, variant: &str) -> Option<&'static Case> {
    all().find(|case| case.model == model && case.variant == variant)
}
