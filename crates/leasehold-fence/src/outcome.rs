//! What became of a request.

/// Whether the store carried out what was asked, as far as we know.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// It did not: asking again is safe.
    NotApplied,
    /// It did.
    Applied,
    /// Nobody knows: the request may still be on its way, or only the answer was lost.
    Unknown,
}
