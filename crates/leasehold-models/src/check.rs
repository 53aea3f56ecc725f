//! Explores a model to the last state, or to a state that breaks a promise, and tells
//! in words how it came to that.

use std::fmt;
use std::hash::Hash;
use std::time::{Duration, Instant};

use stateright::{Checker, Expectation, HasDiscoveries, Model};

/// A model whose steps can be told to people.
pub trait Told: Model {
    /// What happens in this step, in one line.
    fn tell(&self, before: &Self::State, action: &Self::Action, after: &Self::State) -> String;
}

/// What an exploration saw.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// How many different states there are, or were seen before the first counterexample.
    pub states: usize,
    /// How many steps led to them.
    pub steps: usize,
    /// The longest of the shortest ways to a state.
    pub depth: usize,
    /// How long it took.
    pub took: Duration,
    /// What must hold in every state.
    pub properties: Vec<&'static str>,
    /// What the model must be able to do, lest its properties hold for want of events, and
    /// whether it did.
    pub reached: Vec<(&'static str, bool)>,
    /// The ways to states in which a property does not hold; the one that was sought, then the
    /// shortest.
    pub counterexamples: Vec<Counterexample>,
}

/// A way to a state in which a property does not hold.
#[derive(Debug, Clone)]
pub struct Counterexample {
    /// What does not hold there.
    pub property: &'static str,
    /// How it came to that.
    pub steps: Vec<String>,
}

impl Outcome {
    /// Whether all states were seen, every property holds in each, and everything that must
    /// be possible is.
    pub fn holds(&self) -> bool {
        self.counterexamples.is_empty() && self.reached.iter().all(|(_, reached)| *reached)
    }

    /// The property of the first counterexample.
    pub fn broken(&self) -> Option<&'static str> {
        self.counterexamples.first().map(|found| found.property)
    }
}

/// Explores all states, breadth first, until a property is found broken; with `sought`, that one.
pub fn check<M>(model: M, sought: Option<&'static str>) -> Outcome
where
    M: Told + Send + Sync + 'static,
    M::State: Hash + Send + Sync + Clone + PartialEq + 'static,
    M::Action: Clone + PartialEq,
{
    let began = Instant::now();
    // One thread: only then is the first counterexample among the shortest.
    let finish = match sought {
        Some(property) => HasDiscoveries::AnyOf([property].into()),
        None => HasDiscoveries::AnyFailures,
    };
    let checker = model.checker().finish_when(finish).spawn_bfs().join();
    let model = checker.model();
    let discoveries = checker.discoveries();
    let mut counterexamples = Vec::new();
    let mut properties = Vec::new();
    let mut reached = Vec::new();
    for property in model.properties() {
        let discovery = discoveries.get(property.name);
        if property.expectation == Expectation::Sometimes {
            reached.push((property.name, discovery.is_some()));
            continue;
        }
        properties.push(property.name);
        if let Some(path) = discovery {
            let mut path = path.clone().into_vec();
            // The checker looks at a few more states before it stops: tell no more than it takes.
            let fails = |(state, _): &_| !(property.condition)(model, state);
            let first = path.iter().position(fails).unwrap_or(path.len() - 1);
            path.truncate(first + 1);
            let told = path.windows(2).filter_map(|pair| {
                let [(before, Some(action)), (after, _)] = pair else { return None };
                Some(model.tell(before, action, after))
            });
            let counterexample = Counterexample { property: property.name, steps: told.collect() };
            counterexamples.push(counterexample);
        }
    }
    counterexamples
        .sort_by_key(|found: &Counterexample| (Some(found.property) != sought, found.steps.len()));
    Outcome {
        states: checker.unique_state_count(),
        steps: checker.state_count(),
        depth: checker.max_depth(),
        took: began.elapsed(),
        properties,
        reached,
        counterexamples,
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let extent = if self.counterexamples.is_empty() { "all" } else { "so far" };
        let seconds = self.took.as_secs_f64();
        writeln!(
            f,
            "  {} states ({extent}), {} steps, depth {}, {seconds:.1} s",
            grouped(self.states),
            grouped(self.steps),
            self.depth
        )?;
        // Of what was seen so far, nobody can say that it holds.
        let unbroken = if self.counterexamples.is_empty() { "holds " } else { "held  " };
        for property in &self.properties {
            let broken = self.counterexamples.iter().any(|found| found.property == *property);
            writeln!(f, "  {} {property}", if broken { "BROKEN" } else { unbroken })?;
        }
        for (what, reached) in &self.reached {
            writeln!(f, "  {} {what}", if *reached { "seen  " } else { "unseen" })?;
        }
        for found in self.counterexamples.iter().take(1) {
            write!(f, "{found}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Counterexample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  how \"{}\" is broken:", self.property)?;
        for (number, step) in self.steps.iter().enumerate() {
            writeln!(f, "  {:>4}. {step}", number + 1)?;
        }
        Ok(())
    }
}

/// A number that can be read: `1,661,720`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
