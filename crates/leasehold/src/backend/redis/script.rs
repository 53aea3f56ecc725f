//! The scripts, calls of them, and what they answer. Each text lives in a file of its own.

use std::fmt::{self, Write as _};
use std::sync::LazyLock;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use sha1_smol::Sha1;

use super::connection::{Request, Value};
use super::error::unexpected;
use super::keys::{Companion, Keys};
use super::layout;
use crate::error::Result;
use crate::holder::{HeldBy, Holder};
use crate::owner::Owner;
use crate::token::Token;

/// A static for each script, made of these files, and how tests come by their texts.
macro_rules! scripts {
    ($($(#[$doc:meta])* $name:ident = $($part:literal)+;)*) => {
        $(
            $(#[$doc])*
            pub(crate) static $name: LazyLock<Script> =
                LazyLock::new(|| Script::new(concat!($(include_str!($part)),+)));
        )*

        /// All of them by their names.
        static ALL: &[(&str, &LazyLock<Script>)] = &[$((stringify!($name), &$name)),*];

        /// The text of the script of this name, as servers get it: for tests that put it to
        /// one themselves.
        #[doc(hidden)]
        pub fn script_text(name: &str) -> Option<&'static str> {
            ALL.iter().find(|(known, _)| *known == name).map(|(_, script)| script.text.as_str())
        }
    };
}
pub(crate) use scripts;

scripts! {
    /// Takes locks, or places in their queues.
    ACQUIRE = "lua/acquire_common.lua" "lua/token.lua" "lua/held.lua" "lua/queue.lua"
        "lua/acquire.lua";
    /// Shows that waiters still wait.
    BEAT = "lua/clock.lua" "lua/token.lua" "lua/held.lua" "lua/queue.lua" "lua/beat.lua";
    /// Asks after claims without an answer, and leaves tombstones for them.
    SETTLE = "lua/clock.lua" "lua/token.lua" "lua/held.lua" "lua/queue.lua" "lua/settle.lua";
    /// Gives up a place in a queue, or a grant that just came.
    LEAVE = "lua/clock.lua" "lua/token.lua" "lua/queue.lua" "lua/leave.lua";
    /// Gives locks back.
    RELEASE = "lua/release_common.lua" "lua/clock.lua" "lua/token.lua" "lua/queue.lua"
        "lua/release.lua";
    /// Extends leases.
    RENEW = "lua/clock.lua" "lua/token.lua" "lua/renew.lua";
    /// Why leases are gone.
    REASON = "lua/reason.lua";
    /// Takes a lock away from its holder.
    FORCE = "lua/clock.lua" "lua/token.lua" "lua/held.lua" "lua/queue.lua" "lua/force.lua";
    /// Looks at locks.
    INSPECT = "lua/clock.lua" "lua/queue.lua" "lua/inspect.lua";
}

/// A script and the name under which servers keep it.
pub(crate) struct Script {
    pub(crate) text: String,
    hash: String,
}

impl Script {
    pub(crate) fn new(text: &str) -> Self {
        let text = layout::fill(text);
        let hash = Sha1::from(&text).digest().to_string();
        Self { text, hash }
    }
}

/// One call of a script: all its keys are in one slot, where slots matter.
pub(crate) struct Call {
    pub(crate) script: &'static Script,
    pub(crate) slot: u16,
    pub(crate) request: Request,
    /// The word that is just written: one allocation for all of them.
    word: String,
}

impl Call {
    /// A call with this many keys, which come next, and then the arguments.
    pub(crate) fn new(script: &'static Script, slot: u16, keys: usize) -> Self {
        let request = Request::with_capacity(128 + 128 * keys);
        let mut call = Self { script, slot, request, word: String::with_capacity(128) };
        call.arg("EVALSHA").arg(&script.hash).arg(keys);
        call
    }

    /// The keys of a lock: its own, and these companions.
    pub(crate) fn keys(&mut self, keys: &Keys, companions: &[Companion]) {
        self.arg(&keys.lock);
        for companion in companions {
            self.companion(keys, *companion);
        }
    }

    /// One companion of a lock.
    pub(crate) fn companion(&mut self, keys: &Keys, companion: Companion) {
        self.word.clear();
        keys.push_companion(&mut self.word, companion);
        self.request.word(self.word.as_bytes());
    }

    /// The key of an owner's tombstone at a lock.
    pub(super) fn tombstone(&mut self, keys: &Keys, owner: Owner) {
        self.word.clear();
        keys.push_tombstone(&mut self.word, owner);
        self.request.word(self.word.as_bytes());
    }

    /// An argument, as it prints.
    pub(crate) fn arg(&mut self, argument: impl fmt::Display) -> &mut Self {
        self.word.clear();
        // A `String` takes everything.
        let _ = write!(self.word, "{argument}");
        self.request.word(self.word.as_bytes());
        self
    }

    /// This call behind what tells the server its script: nobody has it forget that between
    /// the two.
    pub(crate) fn with_script(&self) -> [Request; 2] {
        [self.loading(), self.request.clone()]
    }

    /// What tells the server its script.
    pub(super) fn loading(&self) -> Request {
        Request::of(&["SCRIPT", "LOAD", &self.script.text])
    }
}

/// As Redis counts: whole milliseconds, never more than were asked for.
pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX).max(1)
}

/// The items of an answer: as many as were asked about.
pub(crate) fn items(answer: Value, count: usize) -> Result<Vec<Value>> {
    match answer {
        Value::Array(items) if items.len() == count => Ok(items),
        _ => Err(unexpected()),
    }
}

/// The parts of an answer that has so many.
pub(crate) fn parts<const N: usize>(answer: &Value) -> Result<&[Value; N]> {
    match answer {
        Value::Array(parts) => parts.as_slice().try_into().map_err(|_| unexpected()),
        _ => Err(unexpected()),
    }
}

pub(crate) fn number(value: &Value) -> Result<i64> {
    match value {
        Value::Int(number) => Ok(*number),
        _ => Err(unexpected()),
    }
}

pub(super) fn token(number: i64) -> Result<Token> {
    u64::try_from(number).map(Token::new).map_err(|_| unexpected())
}

pub(crate) fn text(value: &Value) -> Result<&str> {
    match value {
        Value::Bytes(bytes) => std::str::from_utf8(bytes).map_err(|_| unexpected()),
        _ => Err(unexpected()),
    }
}

/// What a key of another may hold need not be text.
pub(crate) fn bytes(value: &Value) -> Result<&[u8]> {
    match value {
        Value::Bytes(bytes) => Ok(bytes),
        _ => Err(unexpected()),
    }
}

/// `PTTL`: `None` for a key without one.
pub(crate) fn left(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

pub(crate) fn micros(text: &str) -> Option<SystemTime> {
    Some(UNIX_EPOCH + Duration::from_micros(text.parse().ok()?))
}

/// What a lock's record says of its last owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) owner: Owner,
    pub(crate) token: Token,
    pub(crate) held_by: HeldBy,
}

impl Record {
    /// The record, if it is about what the lock's key holds, which `owner` reads. Otherwise a
    /// foreign client has the lock.
    pub(crate) fn of(
        record: &Value,
        holds: &[u8],
        owner: impl FnOnce(&str) -> Option<Owner>,
    ) -> Option<Self> {
        let mut words = text(record).ok()?.split(' ');
        let token = Token::new(words.next()?.parse().ok()?);
        let since = micros(words.next()?);
        let held = words.next().filter(|held| held.as_bytes() == holds)?;
        let (_channel, holder) = (words.next()?, words.next()?);
        let held_by = HeldBy::new(decode_holder(holder), since);
        Some(Self { owner: owner(held)?, token, held_by })
    }
}

/// Everything but what keeps it readable in `redis-cli`.
const ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'_').remove(b'.').remove(b'/');

/// A holder as one word.
pub(crate) fn encode_holder(holder: &Holder) -> String {
    let host = utf8_percent_encode(&holder.host, ESCAPED);
    let label = utf8_percent_encode(&holder.label, ESCAPED);
    format!("{},{host},{label}", holder.pid)
}

pub(crate) fn decode_holder(word: &str) -> Option<Holder> {
    let mut parts = word.split(',');
    let pid = parts.next()?.parse().ok()?;
    let mut decoded = || Some(percent_decode_str(parts.next()?).decode_utf8_lossy().into_owned());
    Some(Holder::new(decoded()?, pid, decoded()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_written_as_it_prints() {
        let owner = Owner::random();
        let mut call = Call::new(&LEAVE, 0, 0);
        call.arg(owner);
        let mut packed = Vec::new();
        call.request.write(&mut packed);
        let packed = String::from_utf8(packed).unwrap();
        assert!(packed.ends_with(&format!("$32\r\n{owner}\r\n")), "{packed}");
    }

    /// A script that says nothing of its arguments is hard to change later.
    #[test]
    fn every_script_says_what_it_takes() {
        for (_, script) in ALL {
            assert!(script.text.contains("-- KEYS  "), "{}", script.text);
            assert_eq!(script.hash, redis::Script::new(&script.text).get_hash());
        }
    }

    #[test]
    fn no_word_of_the_layout_is_left() {
        for (name, script) in ALL {
            assert!(!script.text.contains('@'), "{name}");
        }
    }

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
        let read = |text: &str, holds: &[u8]| {
            let record = Value::Bytes(text.as_bytes().to_vec());
            Record::of(&record, holds, |owner| owner.parse().ok())
        };
        let known = read(&text, owner.to_string().as_bytes()).unwrap();
        assert_eq!((known.owner, known.token), (owner, Token::new(77)));
        assert_eq!(known.held_by.since, Some(UNIX_EPOCH + Duration::from_secs(1)));
        assert_eq!(read(&text, b"a foreign value"), None);
        assert_eq!(read("", b""), None);
    }
}
