//! A request as it travels: written once, in the words of the protocol.

use std::io::{self, Write};

use redis::{Cmd, RedisWrite};

/// What a server is asked.
#[derive(Debug, Clone, Default)]
pub(in crate::backend) struct Request {
    words: usize,
    bytes: Vec<u8>,
}

impl Request {
    /// A request with room for this many bytes.
    pub(in crate::backend) fn with_capacity(bytes: usize) -> Self {
        Self { words: 0, bytes: Vec::with_capacity(bytes) }
    }

    /// A word made of these parts.
    pub(in crate::backend) fn word(&mut self, parts: &[&[u8]]) {
        self.words += 1;
        let length = parts.iter().map(|part| part.len()).sum();
        push_length(&mut self.bytes, b'$', length);
        for part in parts {
            self.bytes.extend_from_slice(part);
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// Appends it to what is sent.
    pub(in crate::backend) fn write(&self, bytes: &mut Vec<u8>) {
        bytes.reserve(24 + self.bytes.len());
        push_length(bytes, b'*', self.words);
        bytes.extend_from_slice(&self.bytes);
    }

    /// The same for the driver.
    pub(in crate::backend) fn command(&self) -> Cmd {
        let mut command = Cmd::with_capacity(self.words, self.bytes.len());
        let mut rest = &self.bytes[..];
        while let Some(end) = rest.iter().position(|&byte| byte == b'\r') {
            let digits = &rest[1..end];
            let length = digits.iter().fold(0, |sum, &digit| 10 * sum + usize::from(digit - b'0'));
            let word = end + 2;
            command.arg(&rest[word..word + length]);
            rest = &rest[word + length + 2..];
        }
        command
    }
}

fn push_length(bytes: &mut Vec<u8>, kind: u8, length: usize) {
    let mut digits = [0; 20];
    let mut start = digits.len();
    let mut rest = length;
    loop {
        start -= 1;
        digits[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    bytes.push(kind);
    bytes.extend_from_slice(&digits[start..]);
    bytes.extend_from_slice(b"\r\n");
}

/// Takes what the driver knows how to write.
impl RedisWrite for Request {
    fn write_arg(&mut self, word: &[u8]) {
        self.word(&[word]);
    }

    fn writer_for_next_arg(&mut self) -> impl Write + '_ {
        NextWord { request: self, word: Vec::new() }
    }
}

/// A word that is just written.
struct NextWord<'a> {
    request: &'a mut Request,
    word: Vec<u8>,
}

impl Write for NextWord<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.word.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for NextWord<'_> {
    fn drop(&mut self) {
        self.request.word(&[&self.word]);
    }
}

#[cfg(test)]
mod tests {
    use redis::ToRedisArgs;

    use super::*;

    #[test]
    fn it_is_what_the_driver_would_send() {
        let mut request = Request::default();
        let long = "x\r\n$3".repeat(300);
        for word in ["EVALSHA", "", "größe", &long] {
            request.word(&[word.as_bytes()]);
        }
        request.word(&[b"in", b"", b" parts"]);
        u64::MAX.write_redis_args(&mut request);
        request.writer_for_next_arg().write_all(b"written").unwrap();
        let mut command = redis::cmd("EVALSHA");
        command.arg("").arg("größe").arg(&long).arg("in parts").arg(u64::MAX).arg("written");
        let mut bytes = b"before".to_vec();
        request.write(&mut bytes);
        let expected = command.get_packed_command();
        assert_eq!(&bytes[6..], &expected[..]);
        assert_eq!(request.command().get_packed_command(), expected);
    }
}
