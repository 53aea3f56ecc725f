//! Reading what scripts answer.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use redis::Value;

use super::error::unexpected;
use crate::error::Result;
use crate::holder::{HeldBy, Holder};
use crate::owner::Owner;
use crate::token::Token;

/// The items of an answer: as many as were asked about.
pub(in crate::backend) fn items(answer: Value, count: usize) -> Result<Vec<Value>> {
    match answer {
        Value::Array(items) if items.len() == count => Ok(items),
        _ => Err(unexpected()),
    }
}

pub(in crate::backend) fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(unexpected()),
    }
}

pub(in crate::backend) fn token(number: i64) -> Result<Token> {
    u64::try_from(number).map(Token::new).map_err(|_| unexpected())
}

pub(in crate::backend) fn text(value: &Value) -> Result<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected()),
        Value::SimpleString(text) => Ok(text),
        Value::VerbatimString { text, .. } => Ok(text),
        _ => Err(unexpected()),
    }
}

/// What a key of another may hold need not be text.
pub(in crate::backend) fn bytes(value: &Value) -> Result<&[u8]> {
    match value {
        Value::BulkString(bytes) => Ok(bytes),
        _ => Err(unexpected()),
    }
}

/// `PTTL`: `None` for a key without one.
pub(in crate::backend) fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

pub(in crate::backend) fn micros(text: &str) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_micros(text.parse().ok()?))
}

/// What a lock's record says of its last owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::backend) struct Record {
    pub(in crate::backend) owner: Owner,
    pub(in crate::backend) token: Token,
    pub(in crate::backend) held_by: HeldBy,
}

impl Record {
    /// The record, if it is about the owner that the lock's key holds. Otherwise a foreign
    /// client has the lock.
    pub(in crate::backend) fn of(record: &Value, holds: &[u8]) -> Option<Self> {
        let mut words = text(record).ok()?.split(' ');
        let token = Token::new(words.next()?.parse().ok()?);
        let since = micros(words.next()?);
        let owner = words.next()?;
        if owner.as_bytes() != holds {
            return None;
        }
        let (_channel, holder) = (words.next()?, words.next()?);
        let held_by = HeldBy::new(decode_holder(holder), since);
        Some(Self { owner: owner.parse().ok()?, token, held_by })
    }
}

/// Everything but what keeps it readable in `redis-cli`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

/// A holder as one word.
pub(in crate::backend) fn encode_holder(holder: &Holder) -> String {
    let host = utf8_percent_encode(&holder.host, ESCAPED);
    let label = utf8_percent_encode(&holder.label, ESCAPED);
    format!("{},{host},{label}", holder.pid)
}

pub(in crate::backend) fn decode_holder(word: &str) -> Option<Holder> {
    let mut parts = word.split(',');
    let pid = parts.next()?.parse().ok()?;
    let mut decoded = || Some(percent_decode_str(parts.next()?).decode_utf8_lossy().into_owned());
    Some(Holder::new(decoded()?, pid, decoded()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_is_one_word_and_comes_back() {
        let holder = Holder::new("web 1,x", 42, "nightly report 100% – größe");
        let word = encode_holder(&holder);
        assert!(!word.contains(' '), "{word}");
        assert_eq!(decode_holder(&word), Some(holder));
        assert_eq!(decode_holder("-"), None);
    }

    #[test]
    fn a_record_of_another_owner_is_not_the_holders() {
        let owner = Owner::random();
        let text = format!("77 1000000 {owner} P:c {}", encode_holder(&Holder::this_process()));
        let record = Value::BulkString(text.into_bytes());
        let known = Record::of(&record, owner.to_string().as_bytes()).unwrap();
        assert_eq!((known.owner, known.token), (owner, Token::new(77)));
        assert_eq!(known.held_by.since, Some(UNIX_EPOCH + Duration::from_secs(1)));
        assert_eq!(Record::of(&record, b"a foreign value"), None);
        assert_eq!(Record::of(&Value::BulkString(Vec::new()), b""), None);
    }
}
