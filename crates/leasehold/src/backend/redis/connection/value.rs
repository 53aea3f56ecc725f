//! What a server answers, and what it says in place of an answer.

/// An answer. What no command of ours asks for (numbers with a point, truth values) is the text
/// in which it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    /// Need not be text.
    Bytes(Vec<u8>),
    /// An array, or a set.
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
}

/// Why a server did not do what it was asked for, in its own words: a code, and the detail.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refusal(String);

impl Refusal {
    pub(crate) fn new(text: &[u8]) -> Self {
        Self(String::from_utf8_lossy(text).into_owned())
    }

    pub(crate) fn code(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    pub(crate) fn detail(&self) -> &str {
        self.0.split_once(' ').map_or("", |(_, detail)| detail)
    }
}
