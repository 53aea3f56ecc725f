//! What became of a state transition.

/// A state transition that holds. What belongs to it is done only [`Now`](Moved::Now): a call
/// that is repeated after its commit gets [`Before`](Moved::Before), and the effect is there.
#[must_use = "do what belongs to the transition only if it is Moved::Now"]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This call made it.
    Now,
    /// An earlier call of the same lease made it; its answer may have been lost.
    Before,
}
