//! The line that a fenced object begins with.

use bytes::Bytes;

use crate::token::Token;

const MAGIC: &str = "leasehold-fence 1 ";
/// The longest line: a token has at most 20 digits, a nonce 32.
const LONGEST: usize = 128;

/// What the line says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Envelope {
    pub(super) token: Token,
    pub(super) nonce: String,
    /// Or deleted.
    pub(super) live: bool,
}

impl Envelope {
    pub(super) fn seal(&self, content: &[u8]) -> Bytes {
        let state = if self.live { "live" } else { "deleted" };
        let line = format!("{MAGIC}token={} nonce={} {state}\n", self.token, self.nonce);
        [line.as_bytes(), content].concat().into()
    }

    pub(super) fn open(payload: Bytes) -> Option<(Self, Bytes)> {
        let end = payload.iter().take(LONGEST).position(|byte| *byte == b'\n')?;
        let line = str::from_utf8(&payload[..end]).ok()?.strip_prefix(MAGIC)?;
        let mut words = line.split(' ');
        let token = words.next()?.strip_prefix("token=")?.parse().ok()?;
        let nonce = words.next()?.strip_prefix("nonce=")?.to_owned();
        let live = match words.next()? {
            "live" => true,
            "deleted" => false,
            _ => return None,
        };
        Some((Self { token: Token::new(token), nonce, live }, payload.slice(end + 1..)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_sealed_can_be_opened() {
        for content in ["", "\n", "leasehold-fence 1 token=1\n", "a\nb"] {
            let (token, nonce) = (Token::new(u64::MAX), "f".repeat(32));
            let envelope = Envelope { token, nonce, live: !content.is_empty() };
            let sealed = envelope.seal(content.as_bytes());
            assert_eq!(Envelope::open(sealed), Some((envelope, Bytes::from(content))));
        }
        for foreign in ["", "\n", "a,b\n1,2\n", "leasehold-fence 2 token=1 nonce=x live\n"] {
            assert_eq!(Envelope::open(Bytes::from(foreign)), None, "{foreign:?}");
        }
    }
}
