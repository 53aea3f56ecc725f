//! What became of a state transition.

/// A state transition that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moved {
    /// This call made it.
    Now,
    /// An earlier call of the same lease made it; its answer may have been lost.
    Before,
}
