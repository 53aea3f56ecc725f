//! A connection of our own, for servers without TLS.
//!
//! It is as lean as a hand-over wants it. Whoever asks while nothing is under way writes to
//! the socket itself; what comes while answers are awaited collects, and leaves together. A
//! message goes to its waiter from where it is read, and before answers that can wait.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task::{self, JoinHandle};

use super::request::Request;
use super::resp::{Frame, Stop, frame};

/// How many answers after a message can wait: to the release of what it granted, and to the
/// claim that may follow.
const PATIENT: usize = 2;
/// How often such an answer lets others go first.
const YIELDS: usize = 2;
/// How much is read at once, at first.
const BUFFER: usize = 8 * 1024;
/// How much room for requests is kept when none are there.
const KEPT: usize = 64 * 1024;

/// What is heard on a connection, beside answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Heard<'a> {
    /// A message of a channel.
    Message(&'a [u8]),
    /// It is over, and nobody here ended it.
    Ended,
}

type Ears = Box<dyn Fn(Heard<'_>) + Send + Sync>;

/// A connection. It ends with its last clone.
#[derive(Clone)]
pub(super) struct Wire(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    reading: JoinHandle<()>,
    writing: JoinHandle<()>,
}

struct Shared {
    socket: OwnedWriteHalf,
    state: Mutex<State>,
    /// There is something to write.
    more: Notify,
    ears: Ears,
}

#[derive(Default)]
struct State {
    /// Who gets the next answers, in this order: whoever gave up is still among them.
    awaited: VecDeque<oneshot::Sender<Value>>,
    /// What is not written yet. Always of requests that are awaited.
    unwritten: Vec<u8>,
    ended: bool,
    /// We ended it ourselves.
    dropped: bool,
}

impl Wire {
    /// Connects, and signs in.
    pub(super) async fn open(
        (host, port): (&str, u16),
        settings: &RedisConnectionInfo,
        ears: Ears,
    ) -> RedisResult<Self> {
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let wire = Self::on(socket, ears);
        wire.sign_in(settings).await?;
        Ok(wire)
    }

    fn on(socket: TcpStream, ears: Ears) -> Self {
        let (read, socket) = socket.into_split();
        let (state, more) = (Mutex::default(), Notify::new());
        let shared = Arc::new(Shared { socket, state, more, ears });
        let reading = tokio::spawn(shared.clone().read(read));
        let writing = tokio::spawn(shared.clone().write());
        Self(Arc::new(Handle { shared, reading, writing }))
    }

    async fn sign_in(&self, settings: &RedisConnectionInfo) -> RedisResult<()> {
        let mut hello = redis::cmd("HELLO");
        hello.arg(3);
        if let Some(password) = settings.password() {
            hello.arg("AUTH").arg(settings.username().unwrap_or("default")).arg(password);
        }
        let mut steps = vec![self.send(&hello)?];
        if settings.db() != 0 {
            steps.push(self.send(redis::cmd("SELECT").arg(settings.db()))?);
        }
        let names = [("LIB-NAME", settings.lib_name()), ("LIB-VER", settings.lib_ver())];
        let mut optional = Vec::new();
        for (what, name) in names {
            let mut named = redis::cmd("CLIENT");
            named.arg("SETINFO").arg(what).arg(name.unwrap_or_default());
            optional.push(self.send(&named)?);
        }
        for (step, answer) in steps.into_iter().enumerate() {
            let greeted = answered(answer).await;
            greeted.map_err(|error| if step == 0 { no_hello(error) } else { error })?;
        }
        for answer in optional {
            // Servers before 7.2 know no such thing.
            answer.await.map_err(|_| ended())?;
        }
        Ok(())
    }

    /// Asks once. Dropped, it is still asked, and the answer is for nobody.
    pub(super) async fn request(&self, request: &Request) -> RedisResult<Value> {
        answered(self.0.shared.send_one(|bytes| request.write(bytes))?).await
    }

    /// The same in the driver's words.
    pub(super) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        answered(self.send(command)?).await
    }

    /// Asks in this order, with nothing between.
    pub(super) async fn ask_all(&self, commands: &Pipeline) -> RedisResult<Vec<Value>> {
        let mut answers = Vec::with_capacity(commands.len());
        let asked = self.0.shared.send(commands.len(), |bytes| {
            commands.cmd_iter().for_each(|command| command.write_packed_command(bytes));
        })?;
        for answer in asked {
            answers.push(answered(answer).await);
        }
        answers.into_iter().collect()
    }

    fn send(&self, command: &Cmd) -> RedisResult<oneshot::Receiver<Value>> {
        self.0.shared.send_one(|bytes| command.write_packed_command(bytes))
    }
}

async fn answered(answer: oneshot::Receiver<Value>) -> RedisResult<Value> {
    answer.await.map_err(|_| ended())?.extract_error()
}

impl Shared {
    fn send_one(&self, write: impl FnOnce(&mut Vec<u8>)) -> RedisResult<oneshot::Receiver<Value>> {
        let (tell, told) = oneshot::channel();
        self.leave([tell], write)?;
        Ok(told)
    }

    fn send(
        &self,
        count: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<Vec<oneshot::Receiver<Value>>> {
        let (tell, told): (Vec<_>, Vec<_>) = (0..count).map(|_| oneshot::channel()).unzip();
        self.leave(tell, write)?;
        Ok(told)
    }

    /// Requests leave, at once if nothing else is under way.
    fn leave(
        &self,
        tell: impl IntoIterator<Item = oneshot::Sender<Value>>,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> RedisResult<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.ended {
            return Err(ended());
        }
        let alone = state.awaited.is_empty();
        let first = state.unwritten.is_empty();
        state.awaited.extend(tell);
        write(&mut state.unwritten);
        if alone && first {
            // An error is met again by whoever writes the rest.
            let written = self.socket.try_write(&state.unwritten).unwrap_or(0);
            if written == state.unwritten.len() {
                state.unwritten.clear();
                state.unwritten.shrink_to(KEPT);
                return Ok(());
            }
            state.unwritten.drain(..written);
        }
        if first {
            self.more.notify_one();
        }
        Ok(())
    }

    async fn write(self: Arc<Self>) {
        let _ending = Ending(&self);
        let mut batch = Vec::new();
        loop {
            self.more.notified().await;
            // Those who were just answered may have something to send as well.
            task::yield_now().await;
            std::mem::swap(&mut batch, &mut self.state.lock().unwritten);
            let mut rest = &batch[..];
            while !rest.is_empty() {
                match self.socket.try_write(rest) {
                    Ok(0) => return,
                    Ok(written) => rest = &rest[written..],
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        if self.socket.writable().await.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
            batch.clear();
            batch.shrink_to(KEPT);
        }
    }

    async fn read(self: Arc<Self>, mut socket: OwnedReadHalf) {
        let _ending = Ending(&self);
        let mut buffer = vec![0; BUFFER];
        let mut filled = 0;
        let mut patient = 0;
        loop {
            if filled == buffer.len() {
                buffer.resize(2 * filled, 0);
            }
            let mut free = ReadBuf::new(&mut buffer[filled..]);
            let read = poll_fn(|cx| Pin::new(&mut socket).poll_read(cx, &mut free)).await;
            let count = free.filled().len();
            if read.is_err() || count == 0 {
                return;
            }
            filled += count;
            let mut used = 0;
            let mut yielded = false;
            loop {
                match frame(&buffer[used..filled]) {
                    Ok((frame, length)) => {
                        used += length;
                        match frame {
                            Frame::Message(_) => patient = PATIENT,
                            Frame::Answer(_) if patient > 0 => {
                                patient -= 1;
                                // Once for what was read together: a message may be in it, too.
                                if !std::mem::replace(&mut yielded, true) {
                                    let_others_go_first().await;
                                }
                            }
                            _ => {}
                        }
                        if !self.heard(frame) {
                            return;
                        }
                    }
                    Err(Stop::More) => break,
                    Err(Stop::Garbage) => return,
                }
            }
            buffer.copy_within(used..filled, 0);
            filled -= used;
            if filled == 0 && buffer.len() > KEPT {
                buffer = vec![0; BUFFER];
            }
        }
    }

    /// Whether the connection can go on.
    fn heard(&self, frame: Frame<'_>) -> bool {
        match frame {
            Frame::Answer(value) => {
                let next = self.state.lock().awaited.pop_front();
                // An answer that nobody asked for: the next ones would be another's.
                let Some(next) = next else { return false };
                // Whoever asked may be gone.
                let _ = next.send(value);
            }
            Frame::Message(message) => (self.ears)(Heard::Message(message)),
            Frame::Unsubscribed => return false,
            Frame::Other => {}
        }
        true
    }

    fn end(&self) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.ended, true);
        // Outside of the lock: those who wait are told by it.
        let nobody = std::mem::take(&mut state.awaited);
        let dropped = state.dropped;
        drop(state);
        drop(nobody);
        if !before && !dropped {
            (self.ears)(Heard::Ended);
        }
    }
}

/// A server writes the answer to a release before the message to whom that let in, and all
/// wait for whoever has the lock: what the next holder is told, and sends, comes before what
/// the last one does now. (It may be another client's, on the same thread.)
async fn let_others_go_first() {
    for _ in 0..YIELDS {
        task::yield_now().await;
    }
}

/// However one of the two tasks ends (the socket does, the runtime, a panic), nobody is left
/// waiting.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().dropped = true;
        self.reading.abort();
        self.writing.abort();
    }
}

impl fmt::Debug for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wire").finish_non_exhaustive()
    }
}

fn ended() -> RedisError {
    io::Error::from(io::ErrorKind::BrokenPipe).into()
}

/// Servers before Redis 6 speak no RESP3.
fn no_hello(error: RedisError) -> RedisError {
    if error.detail().is_some_and(|detail| detail.starts_with("unknown command")) {
        return (ErrorKind::RESP3NotSupported, "the server knows no HELLO").into();
    }
    error
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Wake, Waker};
    use std::time::Duration;

    use tokio::net::TcpListener;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;

    /// A server that we speak for, a connection to it, and what is heard on that.
    async fn pair() -> (TcpStream, Wire, mpsc::UnboundedReceiver<String>) {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        let ears = Box::new(move |heard: Heard<'_>| {
            let _ = tell.send(match heard {
                Heard::Message(message) => String::from_utf8(message.to_vec()).unwrap(),
                Heard::Ended => "ended".to_owned(),
            });
        });
        (listener.accept().await.unwrap().0, Wire::on(client, ears), told)
    }

    async fn say(server: &TcpStream, text: &str) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            server.writable().await.unwrap();
            rest = &rest[server.try_write(rest).unwrap_or(0)..];
        }
    }

    /// What the server is asked, until there is nothing for a while.
    async fn asked(server: &TcpStream) -> String {
        let mut bytes = [0; 4096];
        let mut text = String::new();
        while timeout(Duration::from_millis(50), server.readable()).await.is_ok() {
            match server.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => text.push_str(std::str::from_utf8(&bytes[..count]).unwrap()),
                Err(_) => {}
            }
        }
        text
    }

    fn words(text: &str) -> Vec<&str> {
        text.lines().filter(|line| !line.starts_with(['*', '$'])).collect()
    }

    #[tokio::test]
    async fn answers_go_to_those_who_asked_in_order_whoever_gave_up() {
        let (server, wire, _heard) = pair().await;
        let [first, second, third] = ["a", "b", "c"].map(|word| wire.send(&redis::cmd(word)));
        drop(second);
        assert_eq!(words(&asked(&server).await), ["a", "b", "c"]);
        say(&server, ":1\r\n:2\r\n:").await;
        assert_eq!(answered(first.unwrap()).await.unwrap(), Value::Int(1));
        say(&server, "3\r\n").await;
        assert_eq!(answered(third.unwrap()).await.unwrap(), Value::Int(3));
    }

    #[tokio::test]
    async fn many_at_once_arrive_whole_and_in_order() {
        const MANY: usize = 5_000;
        let (server, wire, _heard) = pair().await;
        let long = "x".repeat(1_000);
        let asking = |number: usize| wire.send(redis::cmd("ECHO").arg(number).arg(&long)).unwrap();
        let answers: Vec<_> = (0..MANY).map(asking).collect();
        // More than the socket takes: it is read only now.
        let text = asked(&server).await;
        let numbers: Vec<_> = words(&text).into_iter().skip(1).step_by(3).collect();
        assert_eq!(numbers.len(), MANY);
        for number in numbers {
            say(&server, &format!(":{number}\r\n")).await;
        }
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(answered(answer).await.unwrap(), Value::Int(number as i64));
        }
    }

    #[tokio::test]
    async fn messages_come_between_answers() {
        let (server, wire, mut heard) = pair().await;
        let answer = wire.send(&redis::cmd("a")).unwrap();
        say(&server, ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n-NOSCRIPT none\r\n").await;
        assert_eq!(answered(answer).await.unwrap_err().code(), Some("NOSCRIPT"));
        assert_eq!(heard.recv().await.unwrap(), "hi");
    }

    /// All wait for the next holder, and nobody for the last one.
    #[tokio::test]
    async fn the_answer_after_a_message_comes_behind_the_messages_of_others() {
        struct Looks(Mutex<mpsc::UnboundedReceiver<String>>, Mutex<Option<bool>>);
        impl Wake for Looks {
            fn wake(self: Arc<Self>) {
                *self.1.lock() = Some(self.0.lock().try_recv().is_ok());
            }
        }
        let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
        let (server, wire, mut heard) = pair().await;
        let (others_server, _others_wire, mut others) = pair().await;
        for (server, heard) in [(&server, &mut heard), (&others_server, &mut others)] {
            say(server, message).await;
            assert_eq!(heard.recv().await.unwrap(), "hi");
        }
        let mut answer = wire.send(&redis::cmd("a")).unwrap();
        let looks = Arc::new(Looks(Mutex::new(others), Mutex::default()));
        let waker = Waker::from(looks.clone());
        assert!(Pin::new(&mut answer).poll(&mut Context::from_waker(&waker)).is_pending());
        say(&server, ":1\r\n").await;
        say(&others_server, message).await;
        while looks.1.lock().is_none() {
            task::yield_now().await;
        }
        assert_eq!(*looks.1.lock(), Some(true), "the message was not there yet");
    }

    /// Closed, garbage, an answer too many, a slot that moved: nobody waits for what comes after.
    #[tokio::test]
    async fn nobody_is_left_waiting_when_it_ends() {
        let moved = ">3\r\n$12\r\nsunsubscribe\r\n$1\r\nc\r\n:0\r\n";
        for last in ["", "what?\r\n", moved, ":1\r\n:2\r\n:3\r\n"] {
            let (server, wire, mut heard) = pair().await;
            let answers = ["a", "b"].map(|word| wire.send(&redis::cmd(word)).unwrap());
            say(&server, last).await;
            if last.is_empty() {
                drop(server);
            }
            assert_eq!(heard.recv().await.unwrap(), "ended", "{last:?}");
            for answer in answers {
                assert_eq!(answered(answer).await.is_ok(), last.starts_with(':'), "{last:?}");
            }
            assert!(wire.ask(&redis::cmd("c")).await.is_err());
        }
    }

    #[tokio::test]
    async fn it_ends_with_its_last_clone_and_tells_nobody() {
        let (server, wire, mut heard) = pair().await;
        drop(wire.clone());
        let answer = wire.send(&redis::cmd("a")).unwrap();
        drop(wire);
        assert!(answered(answer).await.is_err());
        assert_eq!(words(&asked(&server).await), ["a"]);
        assert_eq!(heard.recv().await, None);
    }
}
