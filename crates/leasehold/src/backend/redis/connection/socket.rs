//! The socket of a connection: requests go in, and answers go to those who asked.
//!
//! It is built for fast hand-overs. While few answers are awaited, a caller writes to the socket
//! itself; otherwise requests collect and leave together. The reading task passes a message to
//! its waiter at once, and before answers that can wait. TLS is a layer of bytes below all that.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::mem;
use std::pin::Pin;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};
use tokio::task;

use super::ConnectionError;
use super::request::Request;
use super::resp::{Frame, Stop, frame};
use super::tls::Layer;
use super::value::{Refusal, Value};

/// How many answers after a message can wait: to the release of what it granted, and to the
/// claim that may follow.
const PATIENT: usize = 2;
/// How often such an answer lets others go first.
const YIELDS: usize = 2;
/// While fewer answers than this are awaited, a request leaves at once.
const FEW: usize = 4;
/// How much is read at once, at first.
const CHUNK: usize = 8 * 1024;
/// The most that is read at once, and the most room that an empty buffer keeps.
const KEPT: usize = 64 * 1024;

pub(super) type Answer = Result<Value, Refusal>;

/// What is heard on a connection, beside answers.
pub(crate) enum Heard<'a> {
    /// A message of a channel.
    Message(&'a [u8]),
    /// It is over, and nobody here ended it.
    Ended,
}

pub(crate) type OnHeard = Box<dyn Fn(Heard<'_>) + Send + Sync>;

pub(super) struct Socket {
    pub(super) half: OwnedWriteHalf,
    state: Mutex<State>,
    /// There is something to write.
    more: Notify,
    on_heard: OnHeard,
}

#[derive(Default)]
struct State {
    /// The receivers of the next answers, in order. Callers that gave up are still among them.
    awaited: VecDeque<oneshot::Sender<Answer>>,
    tls: Option<Layer>,
    /// The bytes that are not written yet, as they travel.
    unwritten: Vec<u8>,
    /// Earlier bytes are being written: nothing may overtake them, or cut into them.
    writing: bool,
    /// Why it is over.
    ended: Option<ConnectionError>,
    /// We ended it ourselves.
    dropped: bool,
}

impl State {
    /// Appends these requests to what is not written yet, and what TLS has to say.
    fn push(&mut self, requests: &[Request]) -> Result<(), ConnectionError> {
        let bytes = match &mut self.tls {
            None => &mut self.unwritten,
            Some(tls) => &mut tls.plain,
        };
        requests.iter().for_each(|request| request.write(bytes));
        self.tls.as_mut().map_or(Ok(()), |tls| tls.encrypt(&mut self.unwritten))
    }
}

impl Socket {
    pub(super) fn new(half: OwnedWriteHalf, tls: Option<Layer>, on_heard: OnHeard) -> Arc<Self> {
        let state = Mutex::new(State { tls, ..State::default() });
        Arc::new(Self { half, state, more: Notify::new(), on_heard })
    }

    /// Begins the handshake, if there is one. Requests need not wait for its end.
    pub(super) fn greet(&self) -> Result<(), ConnectionError> {
        let mut state = self.state.lock();
        state.push(&[])?;
        self.write_now(&mut state);
        Ok(())
    }

    /// Sends requests, at once if little else is under way.
    pub(super) fn send(
        &self,
        tell: impl IntoIterator<Item = oneshot::Sender<Answer>>,
        requests: &[Request],
    ) -> Result<(), ConnectionError> {
        let mut state = self.state.lock();
        if let Some(why) = &state.ended {
            return Err(why.clone());
        }
        let few = state.awaited.len() < FEW;
        let first = state.unwritten.is_empty();
        state.push(requests)?;
        state.awaited.extend(tell);
        if few && first && !state.writing {
            self.write_now(&mut state);
        } else if first {
            self.more.notify_one();
        }
        Ok(())
    }

    /// Writes what the socket takes. The rest is left to the writing task, which meets an error
    /// again.
    fn write_now(&self, state: &mut State) {
        if !state.unwritten.is_empty() {
            let written = self.half.try_write(&state.unwritten).unwrap_or(0);
            state.unwritten.drain(..written);
        }
        if state.unwritten.is_empty() {
            state.unwritten.shrink_to(KEPT);
        } else {
            self.more.notify_one();
        }
    }

    /// Why it is over.
    pub(super) fn why(&self) -> ConnectionError {
        self.state.lock().ended.clone().unwrap_or(ConnectionError::Closed)
    }

    /// It is not wanted any more: its end is no news.
    pub(super) fn drop_quietly(&self) {
        self.state.lock().dropped = true;
    }

    pub(super) async fn write(self: Arc<Self>) {
        let _ending = Ending(&self);
        let mut batch = Vec::new();
        loop {
            self.more.notified().await;
            // Callers that just got answers may have something to send as well.
            task::yield_now().await;
            {
                let mut state = self.state.lock();
                mem::swap(&mut batch, &mut state.unwritten);
                state.writing = true;
            }
            if let Err(error) = self.write_all(&batch).await {
                return self.end(error.into());
            }
            batch.clear();
            batch.shrink_to(KEPT);
            // Requests that came meanwhile have notified `more`.
            self.state.lock().writing = false;
        }
    }

    async fn write_all(&self, mut rest: &[u8]) -> io::Result<()> {
        while !rest.is_empty() {
            match self.half.try_write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => rest = &rest[written..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.half.writable().await?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    pub(super) async fn read(self: Arc<Self>, half: OwnedReadHalf) {
        let _ending = Ending(&self);
        let why = self.read_all(half).await;
        self.end(why);
    }

    /// Reads until there is a reason not to.
    async fn read_all(&self, mut half: OwnedReadHalf) -> ConnectionError {
        let mut chunk = vec![0; CHUNK];
        let mut unread = Vec::new();
        let mut patient = 0;
        loop {
            let mut free = ReadBuf::new(&mut chunk);
            let read = poll_fn(|cx| Pin::new(&mut half).poll_read(cx, &mut free)).await;
            let count = free.filled().len();
            let goes_on = match read {
                Ok(()) if count == 0 => return ConnectionError::Closed,
                Ok(()) => self.decrypt(&chunk[..count], &mut unread),
                Err(error) => return error.into(),
            };
            if count == chunk.len() && count < KEPT {
                chunk.resize(2 * count, 0);
            }
            let mut used = 0;
            let mut yielded = false;
            loop {
                match frame(&unread[used..]) {
                    Ok((frame, length)) => {
                        used += length;
                        match frame {
                            Frame::Message(_) => patient = PATIENT,
                            Frame::Answer(_) if patient > 0 => {
                                patient -= 1;
                                // Once for each read: a message may be in it, too.
                                if !mem::replace(&mut yielded, true) {
                                    let_others_go_first().await;
                                }
                            }
                            _ => {}
                        }
                        if !self.heard(frame) {
                            return ConnectionError::Garbage;
                        }
                    }
                    Err(Stop::More) => break,
                    Err(Stop::Garbage) => return ConnectionError::Garbage,
                }
            }
            match goes_on {
                Ok(true) => {}
                Ok(false) => return ConnectionError::Closed,
                Err(error) => return error,
            }
            unread.drain(..used);
            if unread.is_empty() {
                unread.shrink_to(KEPT);
            }
        }
    }

    /// Appends what was read to what is not understood yet; whether more may follow.
    fn decrypt(&self, read: &[u8], unread: &mut Vec<u8>) -> Result<bool, ConnectionError> {
        let mut state = self.state.lock();
        let Some(tls) = &mut state.tls else {
            unread.extend_from_slice(read);
            return Ok(true);
        };
        let goes_on = tls.decrypt(read, unread);
        // It may have something to say now: requests that waited for the handshake, an alert.
        let said = state.push(&[]);
        if state.writing {
            self.more.notify_one();
        } else {
            self.write_now(&mut state);
        }
        goes_on.and_then(|goes_on| said.map(|()| goes_on))
    }

    /// Whether the connection can go on.
    fn heard(&self, frame: Frame<'_>) -> bool {
        match frame {
            Frame::Answer(answer) => {
                let next = self.state.lock().awaited.pop_front();
                // Nobody asked for this answer: the next ones would be another's.
                let Some(next) = next else { return false };
                // The caller may be gone.
                let _ = next.send(answer);
            }
            Frame::Message(message) => (self.on_heard)(Heard::Message(message)),
            Frame::Unsubscribed => return false,
            Frame::Other => {}
        }
        true
    }

    fn end(&self, why: ConnectionError) {
        let mut state = self.state.lock();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(why);
        // Dropped outside of the lock, because this wakes those who wait.
        let nobody = mem::take(&mut state.awaited);
        let dropped = state.dropped;
        drop(state);
        drop(nobody);
        if !dropped {
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
struct Ending<'a>(&'a Socket);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end(ConnectionError::Closed);
    }
}
