//! Where the highest token of each lock is kept.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::pin::Pin;

use parking_lot::Mutex;

use crate::name::Name;
use crate::token::Token;

/// An answer about a mark: the highest token, the one just presented included.
pub type Raised = Pin<Box<dyn Future<Output = Result<Token, MarksError>> + Send>>;

/// The highest token that was let through, by lock.
///
/// Only one admission may use the same marks at a time: it keeps them in memory, and asks
/// only when a token is higher than what it knows.
pub trait Marks: Send + Sync + 'static {
    /// Raises a lock's mark to this token, unless it is higher already; the mark as it then
    /// is. When this answers, the mark survives a crash.
    fn raise(&self, lock: &Name, token: Token) -> Raised;
}

/// Why a mark could not be kept.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the marks cannot be kept: {0}")]
pub struct MarksError(pub String);

/// Marks that end with the process. For tests, and for services whose state does too.
#[derive(Debug, Default)]
pub struct MemoryMarks(Mutex<HashMap<Name, Token>>);

impl Marks for MemoryMarks {
    fn raise(&self, lock: &Name, token: Token) -> Raised {
        let highest = match self.0.lock().entry(lock.clone()) {
            Entry::Vacant(vacant) => *vacant.insert(token),
            Entry::Occupied(mut mark) => {
                let highest = token.max(*mark.get());
                mark.insert(highest);
                highest
            }
        };
        Box::pin(std::future::ready(Ok(highest)))
    }
}
