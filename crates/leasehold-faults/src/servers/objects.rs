//! A small object server with S3's conditional puts, since Debian has none to install.
//!
//! It speaks as much as `object_store`'s S3 client needs: PUT with `If-Match` and
//! `If-None-Match`, GET, over HTTP/1.1. As S3 does, it makes the ETag from the content alone.
//! It can be told to fail in the ways that make a write ambiguous.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use anyhow::{Context, Result};

/// What happens to the next put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mishap {
    /// It is done, and answered with 500.
    DoneButFailed,
    /// It is done, and the connection is closed instead of an answer.
    DoneButSilent,
    /// It is not done, and answered with 500.
    NotDone,
}

#[derive(Debug, Default)]
struct State {
    objects: HashMap<String, Vec<u8>>,
    mishaps: Vec<Mishap>,
    puts: usize,
}

/// An object server on a thread of this process. It ends with the process.
#[derive(Debug, Clone)]
pub struct Objects {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

impl Objects {
    /// Starts it.
    ///
    /// # Errors
    ///
    /// When it cannot listen.
    pub fn start() -> Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).context("cannot listen")?;
        let server = Self { address: listener.local_addr()?, state: Arc::default() };
        let state = server.state.clone();
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let state = state.clone();
                thread::spawn(move || while serve(&stream, &state).is_some() {});
            }
        });
        Ok(server)
    }

    /// Where it is, as an S3 endpoint.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Lets the next put go wrong.
    pub fn mishap(&self, mishap: Mishap) {
        self.state.lock().expect("no panic inside").mishaps.push(mishap);
    }

    /// How many puts it was sent.
    pub fn puts(&self) -> usize {
        self.state.lock().expect("no panic inside").puts
    }
}

struct Request {
    method: String,
    path: String,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

/// One request; `None` when the connection is over.
fn serve(stream: &TcpStream, state: &Mutex<State>) -> Option<()> {
    let request = read(stream)?;
    let mut state = state.lock().expect("no panic inside");
    let now = state.objects.get(&request.path).map(|object| etag(object));
    match request.method.as_str() {
        "GET" => {
            let Some(object) = state.objects.get(&request.path).cloned() else {
                return answer(stream, "404 Not Found", "", b"<Error/>");
            };
            answer(stream, "200 OK", &etag(&object), &object)
        }
        "PUT" => {
            state.puts += 1;
            let mishap = state.mishaps.pop();
            if mishap == Some(Mishap::NotDone) {
                return answer(stream, "500 Internal Server Error", "", b"<Error/>");
            }
            let wanted = request.headers.get("if-match");
            let refused = wanted.is_some_and(|wanted| now.as_ref() != Some(wanted))
                || (request.headers.contains_key("if-none-match") && now.is_some());
            if refused {
                return answer(stream, "412 Precondition Failed", "", b"<Error/>");
            }
            let tag = etag(&request.body);
            state.objects.insert(request.path, request.body);
            match mishap {
                Some(Mishap::DoneButSilent) => None,
                Some(_) => answer(stream, "500 Internal Server Error", "", b"<Error/>"),
                None => answer(stream, "200 OK", &tag, b""),
            }
        }
        _ => answer(stream, "501 Not Implemented", "", b"<Error/>"),
    }
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
    let mut words = line.split_whitespace().map(str::to_owned);
    let (method, path) = (words.next()?, words.next()?);
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok().filter(|read| *read > 0)?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|length| length.parse().ok());
    let mut body = vec![0; length.unwrap_or(0)];
    reader.read_exact(&mut body).ok()?;
    let path = path.split('?').next()?.to_owned();
    Some(Request { method, path, headers, body })
}

fn answer(mut stream: &TcpStream, status: &str, etag: &str, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-length: {length}\r\netag: {etag}\r\n\
         last-modified: Mon, 16 Nov 2026 12:00:00 GMT\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).ok()
}

fn etag(content: &[u8]) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("\"{:016x}\"", hasher.finish())
}
