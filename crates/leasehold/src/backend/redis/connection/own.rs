//! A connection of our own, for servers without TLS.
//!
//! It is built for fast hand-overs. While few answers are awaited, a caller writes to the socket
//! itself; otherwise requests collect and leave together. The reading task passes a message to
//! its waiter at once, and before answers that can wait.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::slice;
use std::sync::Arc;

use parking_lot::Mutex;
use redis::{ErrorKind, RedisConnectionInfo, RedisError, RedisResult, Value};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task::{self, JoinSet};

use super::resp::{Frame, Stop, frame};
use crate::backend::redis::script::Request;

/// How many answers after a message can wait: to the release of what it granted, and to the
/// claim that may follow.
const PATIENT: usize = 2;
/// How often such an answer lets others go first.
const YIELDS: usize = 2;
/// While fewer answers than this are awaited, a request leaves at once.
const FEW: usize = 4;
/// The first size of the buffer for reading.
const BUFFER: usize = 8 * 1024;
/// The most room that an empty buffer keeps.
const KEPT: usize = 64 * 1024;

/// What is heard on a connection, beside answers.
pub(crate) enum Heard<'a> {
    /// A message of a channel.
    Message(&'a [u8]),
    /// It is over, and nobody here ended it.
    Ended,
}

pub(crate) type OnHeard = Box<dyn Fn(Heard<'_>) + Send + Sync>;

/// A connection. It ends with its last clone.
#[derive(Clone)]
pub(crate) struct OwnConnection(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    /// Reading and writing, which end with it.
    _tasks: JoinSet<()>,
}

struct Shared {
    socket: OwnedWriteHalf,
    state: Mutex<State>,
    /// There is something to write.
    more: Notify,
    on_heard: OnHeard,
}

#[derive(Default)]
struct State {
    /// The receivers of the next answers, in order. Callers that gave up are still among them.
    awaited: VecDeque<oneshot::Sender<Value>>,
    /// The bytes that are not written yet, all of requests that are awaited.
    unwritten: Vec<u8>,
    /// Earlier bytes are being written: nothing may overtake them, or cut into them.
    writing: bool,
    ended: bool,
    /// We ended it ourselves.
    dropped: bool,
}

impl OwnConnection {
    /// Connects, and signs in.
    pub(super) async fn open(
        (host, port): (&str, u16),
        settings: &RedisConnectionInfo,
        on_heard: OnHeard,
    ) -> RedisResult<Self> {
        let socket = TcpStream::connect((host, port)).await?;
        socket.set_nodelay(true)?;
        let connection = Self::on(socket, on_heard);
        connection.sign_in(settings).await?;
        Ok(connection)
    }

    fn on(socket: TcpStream, on_heard: OnHeard) -> Self {
        let (read, socket) = socket.into_split();
        let (state, more) = (Mutex::default(), Notify::new());
        let shared = Arc::new(Shared { socket, state, more, on_heard });
        let mut tasks = JoinSet::new();
        tasks.spawn(shared.clone().read(read));
        tasks.spawn(shared.clone().write());
        Self(Arc::new(Handle { shared, _tasks: tasks }))
    }

    async fn sign_in(&self, settings: &RedisConnectionInfo) -> RedisResult<()> {
        let mut hello = vec!["HELLO", "3"];
        if let Some(password) = settings.password() {
            hello.extend(["AUTH", settings.username().unwrap_or("default"), password]);
        }
        let greeting = self.send(&Request::of(&hello))?;
        let selected = match settings.db() {
            0 => None,
            database => Some(self.send(&Request::of(&["SELECT", &database.to_string()]))?),
        };
        let names = [("LIB-NAME", settings.lib_name()), ("LIB-VER", settings.lib_ver())];
        let named = names.map(|(what, name)| {
            self.send(&Request::of(&["CLIENT", "SETINFO", what, name.unwrap_or_default()]))
        });
        answered(greeting).await.map_err(no_hello)?;
        if let Some(selected) = selected {
            answered(selected).await?;
        }
        for answer in named {
            // Servers before 7.2 know no such thing.
            answer?.await.map_err(|_| ended())?;
        }
        Ok(())
    }

    /// Asks once. Dropped, it is still asked, and the answer is for nobody.
    pub(super) async fn ask(&self, request: &Request) -> RedisResult<Value> {
        answered(self.send(request)?).await
    }

    /// Asks in this order, with nothing between.
    pub(super) async fn ask_all(&self, requests: &[Request]) -> RedisResult<Vec<Value>> {
        let (tell, told): (Vec<_>, Vec<_>) = requests.iter().map(|_| oneshot::channel()).unzip();
        self.0.shared.send(tell, requests)?;
        let mut answers = Vec::with_capacity(requests.len());
        for answer in told {
            answers.push(answered(answer).await);
        }
        answers.into_iter().collect()
    }

    fn send(&self, request: &Request) -> RedisResult<oneshot::Receiver<Value>> {
        let (tell, told) = oneshot::channel();
        self.0.shared.send([tell], slice::from_ref(request))?;
        Ok(told)
    }
}

async fn answered(answer: oneshot::Receiver<Value>) -> RedisResult<Value> {
    answer.await.map_err(|_| ended())?.extract_error()
}

impl Shared {
    /// Sends requests, at once if little else is under way.
    fn send(
        &self,
        tell: impl IntoIterator<Item = oneshot::Sender<Value>>,
        requests: &[Request],
    ) -> RedisResult<()> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if state.ended {
            return Err(ended());
        }
        let few = state.awaited.len() < FEW;
        let first = state.unwritten.is_empty();
        state.awaited.extend(tell);
        requests.iter().for_each(|request| request.write(&mut state.unwritten));
        if few && first && !state.writing {
            // The writing task meets an error again.
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
            // Callers that just got answers may have something to send as well.
            task::yield_now().await;
            {
                let mut state = self.state.lock();
                std::mem::swap(&mut batch, &mut state.unwritten);
                state.writing = true;
            }
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
            // Requests that came meanwhile have notified `more`.
            self.state.lock().writing = false;
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
                                // Once for each read: a message may be in it, too.
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
                // Nobody asked for this answer: the next ones would be another's.
                let Some(next) = next else { return false };
                // The caller may be gone.
                let _ = next.send(value);
            }
            Frame::Message(message) => (self.on_heard)(Heard::Message(message)),
            Frame::Unsubscribed => return false,
            Frame::Other => {}
        }
        true
    }

    fn end(&self) {
        let mut state = self.state.lock();
        let before = std::mem::replace(&mut state.ended, true);
        // Dropped outside of the lock, because this wakes those who wait.
        let nobody = std::mem::take(&mut state.awaited);
        let dropped = state.dropped;
        drop(state);
        drop(nobody);
        if !before && !dropped {
            (self.on_heard)(Heard::Ended);
        }
    }
}

/// Wakes the next holder before it completes the previous release: a server writes the answer to
/// a release before the message of the grant, and all wait for the holder. (The next holder may be
/// of another client, on the same thread.)
async fn let_others_go_first() {
    for _ in 0..YIELDS {
        task::yield_now().await;
    }
}

/// Ends the connection when one of the two tasks ends, be it by the socket, the runtime or a
/// panic, so that nobody is left waiting.
struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state.lock().dropped = true;
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
mod tests;
