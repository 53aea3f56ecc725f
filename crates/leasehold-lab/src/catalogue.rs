//! Every model and every variant of it, by name.

use crate::check::Outcome;
use crate::{contract, line, quorum, recovery};

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
    /// Explores it, for any counterexample or for one of this property.
    pub explore: Explore,
}

/// Explores a model of this size, looking for any broken property or for this one.
pub type Explore = fn(Size, Option<&'static str>) -> Outcome;

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
        explore: Explore,
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
        explore: Explore,
    ) -> Self {
        Self { model, variant, what, breaks: Some(breaks), size, explore }
    }

    /// Explores it.
    pub fn run(&self, size: Size) -> Outcome {
        (self.explore)(size, self.breaks)
    }

    /// Whether what was seen is what must be seen; why not.
    pub fn judge(&self, outcome: &Outcome) -> Result<(), String> {
        let Self { model, variant, .. } = self;
        match self.breaks {
            None if outcome.holds() => Ok(()),
            None => Err(format!("{model} {variant} does not hold")),
            Some(property) if outcome.broken() == Some(property) => Ok(()),
            Some(property) => {
                let broken = outcome.broken().unwrap_or("nothing");
                Err(format!(
                    "{model} {variant} was to break \"{property}\", but broke \"{broken}\""
                ))
            }
        }
    }

    /// What was seen, for people.
    pub fn report(&self, outcome: &Outcome) -> String {
        format!("{} {}: {}\n{outcome}", self.model, self.variant, self.what)
    }
}

/// All cases.
pub fn all() -> impl Iterator<Item = &'static Case> {
    [quorum::cases::CASES, recovery::CASES, contract::cases::CASES, line::cases::CASES]
        .into_iter()
        .flatten()
}

/// The case of this name.
pub fn find(model: &str, variant: &str) -> Option<&'static Case> {
    all().find(|case| case.model == model && case.variant == variant)
}
