//! A request as it travels: written once, in the words of the protocol.

use std::io::Write as _;

#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    words: usize,
    bytes: Vec<u8>,
}

impl Request {
    /// A request of these words.
    pub(crate) fn of(words: &[&str]) -> Self {
        let mut request = Self::default();
        words.iter().for_each(|word| request.word(word.as_bytes()));
        request
    }

    /// A request without words yet, with room for so many bytes.
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self { words: 0, bytes: Vec::with_capacity(bytes) }
    }

    pub(crate) fn word(&mut self, word: &[u8]) {
        self.words += 1;
        // A `Vec` takes everything.
        let _ = write!(self.bytes, "${}\r\n", word.len());
        self.bytes.extend_from_slice(word);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends it to what is sent.
    pub(crate) fn write(&self, bytes: &mut Vec<u8>) {
        bytes.reserve(24 + self.bytes.len());
        let _ = write!(bytes, "*{}\r\n", self.words);
        bytes.extend_from_slice(&self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_the_redis_crate_would_send() {
        let long = "x\r\n$3".repeat(300);
        let request = Request::of(&["EVALSHA", "", "größe", &long, &u64::MAX.to_string()]);
        let mut command = redis::cmd("EVALSHA");
        command.arg("").arg("größe").arg(&long).arg(u64::MAX);
        let mut bytes = b"before".to_vec();
        request.write(&mut bytes);
        assert_eq!(&bytes[6..], &command.get_packed_command()[..]);
    }
}
