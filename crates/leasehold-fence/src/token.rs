//! The fencing token: what a resource compares to turn away a late writer.

use std::fmt;

/// A fencing token: strictly increasing per lock, on every store.
///
/// Give it to the resource with every write; the resource refuses a token
/// lower than the highest it has seen.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(u64);

impl Token {
    /// The largest token of a store without a bigger counter of its own:
    /// 2^53 − 1, so that JavaScript and Lua can carry every token exactly.
    pub const MAX_PORTABLE: Token = Token((1 << 53) - 1);

    /// A token with this value.
    pub const fn new(value: u64) -> Self {
        Self(value)
    }

    /// Its value.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The token that follows `last`: one more, or the wall clock in
    /// microseconds when that is further on.
    ///
    /// The clock makes tokens rise even when the counter was lost, so counters
    /// may be forgotten. A clock so far ahead that it would use up the portable
    /// range (it reads past the year 2112) is not believed.
    /// `None` when there is no portable token left.
    pub fn after(last: Token, wall_micros: u64) -> Option<Token> {
        const NOT_BELIEVED: u64 = 1 << 52;
        let floor = if wall_micros < NOT_BELIEVED { wall_micros } else { 0 };
        let next = last.0.checked_add(1)?.max(floor);
        (next <= Self::MAX_PORTABLE.0).then_some(Token(next))
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl From<Token> for u64 {
    fn from(token: Token) -> u64 {
        token.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn follows_the_clock_but_never_goes_back() {
        let at_noon = Token::after(Token::new(0), 1_000).unwrap();
        assert_eq!(at_noon, Token::new(1_000));
        assert_eq!(Token::after(at_noon, 1_000), Some(Token::new(1_001)));
        assert_eq!(Token::after(at_noon, 5), Some(Token::new(1_001)), "clock went back");
    }

    #[test]
    fn a_mad_clock_does_not_use_up_the_range() {
        assert_eq!(Token::after(Token::new(7), u64::MAX), Some(Token::new(8)));
        assert_eq!(Token::after(Token::MAX_PORTABLE, 0), None);
        assert_eq!(Token::after(Token::new(u64::MAX), 0), None);
    }
}
