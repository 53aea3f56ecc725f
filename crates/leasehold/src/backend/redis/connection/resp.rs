//! Reading RESP3: what a server says.

use super::value::{Refusal, Value};

/// How deep an answer may be nested. Ours are three deep.
const DEEPEST: usize = 16;

/// What a server says at once.
#[derive(Debug, PartialEq)]
pub(super) enum Frame<'a> {
    /// The answer to the oldest request that has none. (A subscription is answered by a
    /// message that is as good as one.) An error anywhere in it is all of it.
    Answer(Result<Value, Refusal>),
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
    let mut reader = Reader { bytes, at: 0, refusal: None };
    let frame = match bytes.first() {
        Some(b'>') => reader.push()?,
        _ => {
            let value = reader.value(0)?;
            Frame::Answer(reader.refusal.map_or(Ok(value), Err))
        }
    };
    Ok((frame, reader.at))
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// The first error that was met.
    refusal: Option<Refusal>,
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
            b"subscribe" | b"ssubscribe" => Frame::Answer(Ok(Value::Array(data))),
            b"unsubscribe" | b"sunsubscribe" => Frame::Unsubscribed,
            _ => Frame::Other,
        })
    }

    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        Ok(match self.bytes.get(self.at).ok_or(Stop::More)? {
            b':' => Value::Int(self.number()?),
            b'$' => match self.count()? {
                None => Value::Nil,
                Some(length) => Value::Bytes(self.take(length)?.to_vec()),
            },
            b'+' | b',' | b'#' | b'(' => Value::Bytes(self.line()?.to_vec()),
            b'-' => {
                let text = self.line()?;
                self.refused(text)
            }
            b'!' => {
                let text = self.blob()?;
                self.refused(text)
            }
            b'=' => {
                // Three letters tell its format.
                let text = self.blob()?.get(4..).ok_or(Stop::Garbage)?;
                Value::Bytes(text.to_vec())
            }
            b'_' => {
                self.line()?;
                Value::Nil
            }
            _ if depth == DEEPEST => return Err(Stop::Garbage),
            b'*' => match self.count()? {
                None => Value::Nil,
                Some(count) => Value::Array(self.values(count, depth)?),
            },
            b'~' => {
                let count = self.count()?.ok_or(Stop::Garbage)?;
                Value::Array(self.values(count, depth)?)
            }
            b'%' => {
                let count = self.count()?.ok_or(Stop::Garbage)?;
                let pair = |_| Ok((self.value(depth + 1)?, self.value(depth + 1)?));
                Value::Map((0..count).map(pair).collect::<Result<_, _>>()?)
            }
            _ => return Err(Stop::Garbage),
        })
    }

    fn refused(&mut self, text: &[u8]) -> Value {
        self.refusal.get_or_insert_with(|| Refusal::new(text));
        Value::Nil
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Vec<Value>, Stop> {
        // The least that a value takes is three bytes: a count alone claims no memory.
        let mut values = Vec::with_capacity(count.min(self.bytes.len() / 3));
        for _ in 0..count {
            values.push(self.value(depth + 1)?);
        }
        Ok(values)
    }

    fn word(&mut self) -> Result<&'a [u8], Stop> {
        match self.bytes.get(self.at).ok_or(Stop::More)? {
            b'$' => self.blob(),
            b'+' => self.line(),
            _ => Err(Stop::Garbage),
        }
    }

    /// Bytes behind their length.
    fn blob(&mut self) -> Result<&'a [u8], Stop> {
        let length = self.count()?.ok_or(Stop::Garbage)?;
        self.take(length)
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

/// What another parser makes of a whole answer.
#[cfg(test)]
fn by_the_redis_crate(text: &[u8]) -> Result<Value, Refusal> {
    fn ours(value: redis::Value) -> Value {
        let all = |values: Vec<_>| Value::Array(values.into_iter().map(ours).collect());
        match value {
            redis::Value::Nil => Value::Nil,
            redis::Value::Int(number) => Value::Int(number),
            redis::Value::Okay => Value::Bytes(b"OK".to_vec()),
            redis::Value::BulkString(bytes) | redis::Value::BigNumber(bytes) => Value::Bytes(bytes),
            redis::Value::SimpleString(text) | redis::Value::VerbatimString { text, .. } => {
                Value::Bytes(text.into_bytes())
            }
            redis::Value::Double(number) => Value::Bytes(number.to_string().into_bytes()),
            redis::Value::Boolean(truth) => {
                Value::Bytes(truth.to_string().as_bytes()[..1].to_vec())
            }
            redis::Value::Array(values) | redis::Value::Set(values) => all(values),
            redis::Value::Map(pairs) => {
                Value::Map(pairs.into_iter().map(|(key, value)| (ours(key), ours(value))).collect())
            }
            other => panic!("{other:?} is no answer"),
        }
    }
    let value = redis::parse_redis_value(text).unwrap();
    value.extract_error().map(ours).map_err(|error| {
        let words: Vec<_> = error.code().into_iter().chain(error.detail()).collect();
        Refusal::new(words.join(" ").as_bytes())
    })
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
        "-ERR\r\n",
        "*2\r\n:1\r\n*4\r\n:1\r\n:-1\r\n$1\r\nx\r\n$0\r\n\r\n",
        "*0\r\n",
        "*-1\r\n",
        "%2\r\n+a\r\n:1\r\n$1\r\nb\r\n#t\r\n",
        "~1\r\n:1\r\n",
        ",1.5\r\n",
        "(12345678901234567890\r\n",
        "=8\r\ntxt:text\r\n",
        "!9\r\nERR wrong\r\n",
        "*3\r\n:1\r\n*1\r\n-ERR first\r\n-OOM second\r\n",
        "%1\r\n!7\r\nERR key\r\n-ERR value\r\n",
    ];

    #[test]
    fn says_what_the_redis_crate_would() {
        for text in ANSWERS {
            assert_eq!(whole(text), Frame::Answer(by_the_redis_crate(text.as_bytes())), "{text:?}");
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
        assert!(matches!(whole(answer), Frame::Answer(Ok(Value::Array(_)))));
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
            "=3\r\ntxt\r\n",
            "!-1\r\n",
            "$9223372036854775808\r\n",
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
        Answer(Result<Value, Refusal>),
        Message(Vec<u8>),
    }

    fn bulk() -> impl Strategy<Value = Vec<u8>> {
        vec(any::<u8>(), 0..20).prop_map(|text| print('$', &text))
    }

    fn print(kind: char, text: &[u8]) -> Vec<u8> {
        [format!("{kind}{}\r\n", text.len()).as_bytes(), text, b"\r\n"].concat()
    }

    /// An answer as it travels.
    fn answer() -> impl Strategy<Value = Vec<u8>> {
        let line = r"\+[a-z ]{1,12}|_|\$-1|\*-1|#[tf]|\([0-9]{1,30}|-[A-Z]{1,8}( [a-z]{1,8}){0,2}";
        let leaf = prop_oneof![
            any::<i64>().prop_map(|number| format!(":{number}\r\n").into_bytes()),
            bulk(),
            line.prop_map(|line| format!("{line}\r\n").into_bytes()),
            "txt:[a-z ]{0,12}".prop_map(|text| print('=', text.as_bytes())),
            "[A-Z]{1,8} [a-z]{1,8}".prop_map(|text| print('!', text.as_bytes())),
        ];
        leaf.prop_recursive(4, 24, 6, |inner| {
            let kind = prop::sample::select(vec!['*', '~', '%']);
            (kind, vec((inner.clone(), inner), 0..3)).prop_map(|(kind, pairs)| {
                let count = if kind == '%' { pairs.len() } else { 2 * pairs.len() };
                let mut bytes = format!("{kind}{count}\r\n").into_bytes();
                pairs.into_iter().for_each(|(one, other)| bytes.extend([one, other].concat()));
                bytes
            })
        })
    }

    /// What a server says, as it travels and as it is meant.
    fn said() -> impl Strategy<Value = (Vec<u8>, Said)> {
        let answer = answer().prop_map(|bytes| {
            let meant = Said::Answer(by_the_redis_crate(&bytes));
            (bytes, meant)
        });
        let message = vec(any::<u8>(), 0..20).prop_map(|text| {
            let head = b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n";
            ([&head[..], &print('$', &text)].concat(), Said::Message(text))
        });
        prop_oneof![answer, message]
    }

    /// All that is whole so far; what is not stays.
    fn read(bytes: &mut Vec<u8>) -> Vec<Said> {
        let mut all = Vec::new();
        loop {
            let length = match frame(bytes) {
                Ok((Frame::Answer(answer), length)) => {
                    all.push(Said::Answer(answer));
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
            let (stream, meant): (Vec<_>, Vec<_>) = all.into_iter().unzip();
            let stream = stream.concat();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let (mut bytes, mut heard) = (Vec::new(), Vec::new());
            for piece in cuts.windows(2) {
                bytes.extend(&stream[piece[0]..piece[1]]);
                heard.extend(read(&mut bytes));
            }
            prop_assert_eq!(heard, meant);
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
