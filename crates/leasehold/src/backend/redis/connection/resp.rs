//! Reading RESP3, what a server says on a connection of ours.

use redis::{Value, parse_redis_value};

/// How deep an answer may be nested. Ours are three deep.
const DEEPEST: usize = 16;

/// What a server says at once.
#[derive(Debug, PartialEq)]
pub(super) enum Frame<'a> {
    /// The answer to the oldest request that has none. (A subscription is answered by a
    /// message that is as good as one.)
    Answer(Value),
    /// A message of a channel.
    Message(&'a [u8]),
    /// A subscription has ended, which nobody here asks for: a slot has moved away.
    Unsubscribed,
    /// What nobody here waits for.
    Other,
}

/// Why there is no frame.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// The rest of it is still to come.
    More,
    /// These bytes are none of the protocol's: nothing after them can be trusted.
    Garbage,
}

/// The first frame of these bytes, and its length.
pub(super) fn frame(bytes: &[u8]) -> Result<(Frame<'_>, usize), Stop> {
    let mut reader = Reader { bytes, at: 0 };
    let frame = match bytes.first() {
        Some(b'>') => reader.push()?,
        _ => Frame::Answer(reader.value(0)?),
    };
    Ok((frame, reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn push(&mut self) -> Result<Frame<'a>, Stop> {
        let count = self.count()?.ok_or(Stop::Garbage)?;
        if count == 0 {
            return Ok(Frame::Other);
        }
        let kind = self.word()?;
        if matches!(kind, b"message" | b"smessage") && count == 3 {
            self.word()?;
            return Ok(Frame::Message(self.word()?));
        }
        let data = self.values(count - 1, 0)?;
        Ok(match kind {
            b"subscribe" | b"ssubscribe" => Frame::Answer(Value::Array(data)),
            b"unsubscribe" | b"sunsubscribe" => Frame::Unsubscribed,
            _ => Frame::Other,
        })
    }

    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let start = self.at;
        Ok(match self.bytes.get(start).ok_or(Stop::More)? {
            b':' => Value::Int(self.number()?),
            b'$' => match self.count()? {
                None => Value::Nil,
                Some(length) => Value::BulkString(self.take(length)?.to_vec()),
            },
            _ if depth == DEEPEST => return Err(Stop::Garbage),
            b'*' => match self.count()? {
                None => Value::Nil,
                Some(count) => Value::Array(self.values(count, depth)?),
            },
            b'~' => {
                let count = self.count()?.ok_or(Stop::Garbage)?;
                Value::Set(self.values(count, depth)?)
            }
            b'%' => {
                let count = self.count()?.ok_or(Stop::Garbage)?;
                let pair = |_| Ok((self.value(depth + 1)?, self.value(depth + 1)?));
                Value::Map((0..count).map(pair).collect::<Result<_, _>>()?)
            }
            // What is rare is left to the driver, once it is whole.
            b'+' | b'-' | b'_' | b',' | b'#' | b'(' => {
                self.line()?;
                self.by_the_driver(start)?
            }
            b'=' | b'!' => {
                let length = self.count()?.ok_or(Stop::Garbage)?;
                self.take(length)?;
                self.by_the_driver(start)?
            }
            _ => return Err(Stop::Garbage),
        })
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Vec<Value>, Stop> {
        // The least that a value takes is three bytes: a count alone claims no memory.
        let mut values = Vec::with_capacity(count.min(self.bytes.len() / 3));
        for _ in 0..count {
            values.push(self.value(depth + 1)?);
        }
        Ok(values)
    }

    fn by_the_driver(&self, start: usize) -> Result<Value, Stop> {
        parse_redis_value(&self.bytes[start..self.at]).map_err(|_| Stop::Garbage)
    }

    fn word(&mut self) -> Result<&'a [u8], Stop> {
        match self.bytes.get(self.at).ok_or(Stop::More)? {
            b'$' => {
                let length = self.count()?.ok_or(Stop::Garbage)?;
                self.take(length)
            }
            b'+' => self.line(),
            _ => Err(Stop::Garbage),
        }
    }

    /// Bytes, and the end of their line.
    fn take(&mut self, length: usize) -> Result<&'a [u8], Stop> {
        let end = self.at.checked_add(length).ok_or(Stop::Garbage)?;
        let taken = self.bytes.get(self.at..end).ok_or(Stop::More)?;
        match self.bytes.get(end..end + 2) {
            None => Err(Stop::More),
            Some(b"\r\n") => {
                self.at = end + 2;
                Ok(taken)
            }
            Some(_) => Err(Stop::Garbage),
        }
    }

    /// A length; `None` for that of nothing.
    fn count(&mut self) -> Result<Option<usize>, Stop> {
        match self.number()? {
            -1 => Ok(None),
            count => usize::try_from(count).map(Some).map_err(|_| Stop::Garbage),
        }
    }

    fn number(&mut self) -> Result<i64, Stop> {
        let digits = std::str::from_utf8(self.line()?).map_err(|_| Stop::Garbage)?;
        digits.parse().map_err(|_| Stop::Garbage)
    }

    /// The rest of the line behind its first byte.
    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at + 1..];
        let end = rest.iter().position(|&byte| byte == b'\n').ok_or(Stop::More)?;
        let line = rest[..end].strip_suffix(b"\r").ok_or(Stop::Garbage)?;
        self.at += 1 + end + 1;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(text: &str) -> Frame<'_> {
        let (frame, length) = frame(text.as_bytes()).unwrap();
        assert_eq!(length, text.len());
        frame
    }

    const ANSWERS: &[&str] = &[
        ":42\r\n",
        ":-7\r\n",
        "$5\r\na\r\nbc\r\n",
        "$0\r\n\r\n",
        "$-1\r\n",
        "_\r\n",
        "+OK\r\n",
        "+PONG\r\n",
        "-NOSCRIPT no such script\r\n",
        "*2\r\n:1\r\n*4\r\n:1\r\n:-1\r\n$1\r\nx\r\n$0\r\n\r\n",
        "*0\r\n",
        "*-1\r\n",
        "%2\r\n+a\r\n:1\r\n$1\r\nb\r\n#t\r\n",
        "~1\r\n:1\r\n",
        ",1.5\r\n",
        "(12345678901234567890\r\n",
        "=8\r\ntxt:text\r\n",
        "!9\r\nERR wrong\r\n",
    ];

    #[test]
    fn says_what_the_driver_would() {
        for text in ANSWERS {
            let driver = parse_redis_value(text.as_bytes()).unwrap();
            assert_eq!(whole(text), Frame::Answer(driver), "{text:?}");
        }
    }

    #[test]
    fn waits_for_the_rest_wherever_it_was_cut() {
        let messages = [">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"];
        for text in ANSWERS.iter().chain(&messages) {
            for end in 0..text.len() {
                assert_eq!(frame(&text.as_bytes()[..end]), Err(Stop::More), "{text:?} {end}");
            }
        }
    }

    #[test]
    fn tells_messages_from_answers() {
        let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        assert_eq!(whole(message), Frame::Message(b"hi"));
        let message = ">3\r\n$8\r\nsmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        assert_eq!(whole(message), Frame::Message(b"hi"));
        let answer = ">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n";
        assert!(matches!(whole(answer), Frame::Answer(Value::Array(_))));
        let over = ">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n";
        assert_eq!(whole(over), Frame::Unsubscribed);
        assert_eq!(whole(">2\r\n$10\r\ninvalidate\r\n_\r\n"), Frame::Other);
    }

    #[test]
    fn garbage_is_not_waited_on() {
        let deep = "*1\r\n".repeat(DEEPEST + 1);
        for text in [
            "x",
            "\r\n",
            ":x\r\n",
            ":1\n",
            "$-2\r\n",
            "$1\r\nabc",
            "*-5\r\n",
            "%-1\r\n",
            ">-1\r\n",
            ">1\r\n:1\r\n",
            &deep,
        ] {
            assert_eq!(frame(text.as_bytes()), Err(Stop::Garbage), "{text:?}");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    /// What a server said, in bytes of our own.
    #[derive(Debug, Clone, PartialEq)]
    enum Said {
        Answer(Value),
        Message(Vec<u8>),
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i64>().prop_map(Value::Int),
            vec(any::<u8>(), 0..20).prop_map(Value::BulkString),
            "[a-z ]{1,12}".prop_map(Value::SimpleString),
            Just(Value::Nil),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                vec(inner.clone(), 0..4).prop_map(Value::Array),
                vec(inner.clone(), 0..4).prop_map(Value::Set),
                vec((inner.clone(), inner), 0..3).prop_map(Value::Map),
            ]
        })
    }

    fn said() -> impl Strategy<Value = Said> {
        let message = vec(any::<u8>(), 0..20).prop_map(Said::Message);
        prop_oneof![value().prop_map(Said::Answer), message]
    }

    fn print(value: &Value, bytes: &mut Vec<u8>) {
        match value {
            Value::Int(number) => bytes.extend(format!(":{number}\r\n").bytes()),
            Value::BulkString(text) => print_bytes(text, bytes),
            Value::SimpleString(text) => bytes.extend(format!("+{text}\r\n").bytes()),
            Value::Nil => bytes.extend(b"_\r\n"),
            Value::Array(values) => print_all('*', values, bytes),
            Value::Set(values) => print_all('~', values, bytes),
            Value::Map(pairs) => {
                bytes.extend(format!("%{}\r\n", pairs.len()).bytes());
                for (key, value) in pairs {
                    print(key, bytes);
                    print(value, bytes);
                }
            }
            other => unreachable!("{other:?} is not made here"),
        }
    }

    fn print_all(kind: char, values: &[Value], bytes: &mut Vec<u8>) {
        bytes.extend(format!("{kind}{}\r\n", values.len()).bytes());
        values.iter().for_each(|value| print(value, bytes));
    }

    fn print_bytes(text: &[u8], bytes: &mut Vec<u8>) {
        bytes.extend(format!("${}\r\n", text.len()).bytes());
        bytes.extend(text);
        bytes.extend(b"\r\n");
    }

    fn printed(all: &[Said]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for said in all {
            match said {
                Said::Answer(value) => print(value, &mut bytes),
                Said::Message(text) => {
                    bytes.extend(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n");
                    print_bytes(text, &mut bytes);
                }
            }
        }
        bytes
    }

    /// All that is whole so far; what is not stays.
    fn read(bytes: &mut Vec<u8>) -> Vec<Said> {
        let mut all = Vec::new();
        loop {
            let length = match frame(bytes) {
                Ok((Frame::Answer(value), length)) => {
                    all.push(Said::Answer(value));
                    length
                }
                Ok((Frame::Message(text), length)) => {
                    all.push(Said::Message(text.to_vec()));
                    length
                }
                Err(Stop::More) => return all,
                other => panic!("{other:?}"),
            };
            bytes.drain(..length);
        }
    }

    proptest! {
        #[test]
        fn a_stream_says_the_same_however_it_is_cut(
            all in vec(said(), 0..6),
            cuts in vec(any::<prop::sample::Index>(), 0..6),
        ) {
            let stream = printed(&all);
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let (mut bytes, mut heard) = (Vec::new(), Vec::new());
            for piece in cuts.windows(2) {
                bytes.extend(&stream[piece[0]..piece[1]]);
                heard.extend(read(&mut bytes));
            }
            prop_assert_eq!(heard, all);
            prop_assert!(bytes.is_empty());
        }

        /// Nothing makes it panic, and it never decides before it has seen all of a frame.
        #[test]
        fn any_bytes_are_a_frame_or_a_part_of_one_or_garbage(
            bytes in prop_oneof![vec(any::<u8>(), 0..40), protocol()],
        ) {
            if let Ok((_, length)) = frame(&bytes) {
                prop_assert!(0 < length && length <= bytes.len());
                for end in 0..length {
                    prop_assert_eq!(frame(&bytes[..end]), Err(Stop::More));
                }
            }
        }
    }

    /// Bytes that often are a frame.
    fn protocol() -> impl Strategy<Value = Vec<u8>> {
        let piece = prop_oneof![
            r"[$*%~>:+_,#(=!|-][0-9-]{0,2}\r\n",
            r"[a-z]{0,3}\r\n",
            r"\$7\r\nmessage\r\n",
        ];
        vec(piece, 0..8).prop_map(|pieces| pieces.concat().into_bytes())
    }
}
