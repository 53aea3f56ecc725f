//! The header that carries a token.

use http::{HeaderMap, HeaderName};

use crate::name::Name;
use crate::token::Token;

/// `Fencing-Token: <lock>;<token>`.
pub const FENCING_TOKEN: HeaderName = HeaderName::from_static("fencing-token");

/// A token of a lock, as a request presents it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Presented {
    /// The lock.
    pub lock: Name,
    /// The token.
    pub token: Token,
}

impl Presented {
    /// What a request presents; `None` if it has no such header.
    ///
    /// # Errors
    ///
    /// What is wrong with the header.
    pub fn read(headers: &HeaderMap) -> Result<Option<Self>, String> {
        let mut values = headers.get_all(FENCING_TOKEN).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err("there is more than one Fencing-Token header".to_owned());
        }
        let text = str::from_utf8(value.as_bytes()).map_err(|_| "it is not UTF-8".to_owned())?;
        // From the end: a lock's name may contain a semicolon, a token cannot.
        let (lock, token) = text.rsplit_once(';').ok_or("write it as <lock>;<token>")?;
        let (lock, token) = (lock.trim(), token.trim());
        if is_joined(lock) {
            return Err("there is more than one token in it, joined by a comma".to_owned());
        }
        let lock = Name::new(lock).map_err(|error| error.to_string())?;
        let digits = token.bytes().all(|byte| byte.is_ascii_digit());
        let number = token.parse().ok().filter(|_| digits);
        let token = number.ok_or_else(|| format!("{token:?} is no token: a whole number"))?;
        Ok(Some(Self { lock, token: Token::new(token) }))
    }
}

/// Whether a token and a comma are in it, `stock;1, stock`: two headers that a proxy joined.
fn is_joined(lock: &str) -> bool {
    let ends_in_token = |part: &str| {
        part.rsplit_once(';').is_some_and(|(_, token)| {
            let token = token.trim();
            !token.is_empty() && token.bytes().all(|byte| byte.is_ascii_digit())
        })
    };
    lock.match_indices(',').any(|(at, _)| ends_in_token(&lock[..at]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[&str]) -> Result<Option<Presented>, String> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(FENCING_TOKEN, value.parse().unwrap());
        }
        Presented::read(&headers)
    }

    #[test]
    fn a_lock_and_a_token_are_read() {
        assert_eq!(read(&[]), Ok(None));
        for (text, lock, token) in [
            ("jobs:1;42", "jobs:1", 42),
            (" a b ; 7 ", "a b", 7),
            ("semi;colon;7", "semi;colon", 7),
            ("com,ma;x,1;7", "com,ma;x,1", 7),
            ("x;18446744073709551615", "x", u64::MAX),
        ] {
            let presented = read(&[text]).unwrap().unwrap();
            assert_eq!((presented.lock.as_str(), presented.token.get()), (lock, token));
        }
    }

    #[test]
    fn anything_else_is_an_error() {
        for text in
            ["", "42", ";42", "x;", "x;-1", "x;+1", "x;1.0", "x;0x1", "x;99999999999999999999"]
        {
            assert!(read(&[text]).is_err(), "{text:?}");
        }
        assert!(read(&["x;1", "x;2"]).is_err());
        for joined in ["x;1, x;1", "x;1,x;2", "x; 1 , y;2", "x;1, y;2, z;3"] {
            assert!(read(&[joined]).is_err(), "{joined:?}");
        }
    }
}

#[cfg(test)]
mod properties {
    use http::HeaderValue;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn read(text: &[u8]) -> Option<Presented> {
        let headers = HeaderMap::from_iter([(FENCING_TOKEN, HeaderValue::from_bytes(text).ok()?)]);
        Presented::read(&headers).ok()?
    }

    fn print(presented: &Presented) -> String {
        format!("{};{}", presented.lock, presented.token)
    }

    proptest! {
        /// Whatever is understood is understood in the same way again.
        #[test]
        fn what_was_read_is_read_back(
            text in prop_oneof![
                vec(any::<u8>(), 0..40),
                "[ -~é日]{0,30};? ?[0-9]{0,21} ?".prop_map(String::into_bytes),
                "[a-z;, 0-9]{0,20}".prop_map(String::into_bytes),
            ],
        ) {
            if let Some(presented) = read(&text) {
                prop_assert_eq!(read(print(&presented).as_bytes()), Some(presented));
            }
        }

        /// A name with a token and a comma in it is taken for two headers that a proxy joined, and
        /// HTTP itself takes spaces off the ends: other names arrive as they are.
        #[test]
        fn a_printed_token_is_read_back(lock in "[!-~é日]([ -~é日]{0,30}[!-~é日])?", token in any::<u64>()) {
            let lock = Name::new(lock).unwrap();
            let presented = Presented { lock, token: Token::new(token) };
            if !is_joined(presented.lock.as_str()) {
                prop_assert_eq!(read(print(&presented).as_bytes()), Some(presented));
            }
        }
    }
}
