//! Every model and every variant of it, by name.

use crate::check::{Outcome, check};
use crate::contract::{self, Contract};
use crate::queue::{self, Queue};
use crate::quorum::{self, Quorum};
use crate::recovery;

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
    /// Whether it is among the tests: small enough for every run of them.
    pub tested: bool,
    /// The model itself, and what is changed about it.
    pub subject: Subject,
}

/// A model, and what is changed about it.
#[derive(Debug, Clone, Copy)]
pub enum Subject {
    /// Nodes that keep their data.
    Quorum(fn(&mut Quorum)),
    /// Nodes one of which forgets everything, once.
    Recovery(fn(&mut Quorum)),
    /// One lease.
    Contract(fn(&mut contract::Habits)),
    /// Waiting in the queue.
    Queue(fn(&mut Queue)),
}

impl Subject {
    const fn model(self) -> &'static str {
        match self {
            Self::Quorum(_) => "quorum",
            Self::Recovery(_) => "recovery",
            Self::Contract(_) => "contract",
            Self::Queue(_) => "queue",
        }
    }

    fn explore(self, size: Size, sought: Option<&'static str>) -> Outcome {
        match self {
            Self::Quorum(change) | Self::Recovery(change) => {
                let mut model = Quorum::new(size.nodes, size.attempts);
                model.wipes = u8::from(matches!(self, Self::Recovery(_)));
                // Fewer states, where all are to be seen; a whole story, where one is sought.
                model.reduced = sought.is_none();
                change(&mut model);
                check(model, sought)
            }
            Self::Contract(change) => {
                let mut model = Contract { losses: 3, habits: Default::default() };
                change(&mut model.habits);
                check(model, sought)
            }
            Self::Queue(change) => {
                let mut model = Queue::new(size.attempts);
                change(&mut model);
                check(model, sought)
            }
        }
    }
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
    pub const fn holds(
        variant: &'static str,
        what: &'static str,
        size: Size,
        subject: Subject,
    ) -> Self {
        let (model, breaks, tested) = (subject.model(), None, true);
        Self { model, variant, what, breaks, size, tested, subject }
    }

    /// Something that must break this property.
    pub const fn breaks(
        property: &'static str,
        variant: &'static str,
        what: &'static str,
        size: Size,
        subject: Subject,
    ) -> Self {
        Self { breaks: Some(property), ..Self::holds(variant, what, size, subject) }
    }

    /// The same, but too big for every run of the tests.
    pub const fn by_hand(self) -> Self {
        Self { tested: false, ..self }
    }

    /// Explores it.
    pub fn run(&self, size: Size) -> Outcome {
        self.subject.explore(size, self.breaks)
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
    [quorum::cases::CASES, recovery::CASES, contract::cases::CASES, queue::cases::CASES]
        .into_iter()
        .flatten()
}

/// The case of this name.
pub fn find(model: &str, variant: &str) -> Option<&'static Case> {
    all().find(|case| case.model == model && case.variant == variant)
}
