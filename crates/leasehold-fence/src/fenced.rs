//! A value in this process that takes no late writes.

use std::fmt;

use parking_lot::Mutex;

use super::error::StaleToken;
use super::rejection::rejected;
use crate::token::Token;

/// A value that only the newest lease may change: each operation brings its token.
///
/// ```
/// use leasehold_fence::Token;
/// use leasehold_fence::Fenced;
///
/// let stock = Fenced::new("item42", 10);
/// let (old, new) = (Token::new(33), Token::new(34));
/// stock.with(old, |stock| *stock -= 1)?;
/// stock.with(new, |stock| *stock -= 1)?;
///
/// let late = stock.with(old, |stock| *stock -= 1).unwrap_err();
/// assert_eq!((late.given, late.seen), (old, new));
/// assert_eq!(stock.read(|stock| *stock), 8);
/// # Ok::<(), leasehold_fence::StaleToken>(())
/// ```
pub struct Fenced<T> {
    name: String,
    state: Mutex<State<T>>,
}

struct State<T> {
    seen: Option<Token>,
    value: T,
}

impl<T> Fenced<T> {
    /// A value that no token has touched. The name appears in logs and events.
    pub fn new(name: impl Into<String>, value: T) -> Self {
        Self { name: name.into(), state: Mutex::new(State { seen: None, value }) }
    }

    /// Changes the value in the name of a lease. The closure runs under a lock: another
    /// lease, older or newer, waits for its end.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] when a newer lease has been here; the closure is then not called.
    pub fn with<R>(&self, token: Token, change: impl FnOnce(&mut T) -> R) -> Result<R, StaleToken> {
        let mut state = self.state.lock();
        match state.seen {
            Some(seen) if seen > token => {
                drop(state);
                Err(rejected("process", &*self.name, StaleToken { given: token, seen }))
            }
            _ => {
                state.seen = Some(token);
                Ok(change(&mut state.value))
            }
        }
    }

    /// Shuts out every older lease from now on.
    ///
    /// # Errors
    ///
    /// [`StaleToken`] when a newer lease has been here.
    pub fn advance(&self, token: Token) -> Result<(), StaleToken> {
        self.with(token, |_| ())
    }

    /// Looks at the value. Needs no token, and promises nothing about what comes next.
    pub fn read<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.state.lock().value)
    }

    /// The highest token it has seen.
    pub fn seen(&self) -> Option<Token> {
        self.state.lock().seen
    }

    /// The value, without its fence.
    pub fn into_inner(self) -> T {
        self.state.into_inner().value
    }
}

impl<T> fmt::Debug for Fenced<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fenced").field("name", &self.name).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_is_the_same_lease_and_lower_is_stale() {
        let value = Fenced::new("value", Vec::new());
        let add = |token, what| value.with(Token::new(token), |list| list.push(what));
        assert_eq!(add(5, "a"), Ok(()));
        assert_eq!(add(5, "b"), Ok(()));
        let stale = StaleToken { given: Token::new(4), seen: Token::new(5) };
        assert_eq!(add(4, "c"), Err(stale));
        assert_eq!(add(6, "d"), Ok(()));
        assert_eq!(value.into_inner(), ["a", "b", "d"]);
    }

    #[test]
    fn advancing_shuts_the_older_lease_out_before_the_first_write() {
        let value = Fenced::new("value", 0);
        value.advance(Token::new(7)).unwrap();
        assert!(value.with(Token::new(6), |value| *value = 6).is_err());
        assert_eq!((value.seen(), value.read(|value| *value)), (Some(Token::new(7)), 0));
    }

    #[tokio::test]
    async fn a_rejection_is_told() {
        let mut told = crate::rejections();
        let value = Fenced::new("told", ());
        value.advance(Token::new(2)).unwrap();
        let stale = value.advance(Token::new(1)).unwrap_err();
        let told = loop {
            let rejection = told.next().await;
            if rejection.name == "told" {
                break rejection;
            }
        };
        assert_eq!((told.resource, told.stale), ("process", stale));
    }
}
