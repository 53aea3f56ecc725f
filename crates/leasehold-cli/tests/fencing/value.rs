//! A process whose own value is fenced, behind a socket: the in-process resource as other
//! processes reach it.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use leasehold::Token;
use leasehold::fence::{Fenced, StaleToken};

/// Serves a value in this process: a line `token value` writes it.
pub(crate) fn serve() -> (SocketAddr, Arc<Fenced<String>>) {
    let value = Arc::new(Fenced::new("value", String::new()));
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    let served = value.clone();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream, &served);
        }
    });
    (address, value)
}

fn answer(mut stream: TcpStream, value: &Fenced<String>) -> Option<()> {
    let mut line = String::new();
    BufReader::new(stream.try_clone().ok()?).read_line(&mut line).ok()?;
    let (token, text) = line.trim_end().split_once(' ')?;
    let token = Token::new(token.parse().ok()?);
    let answer = match value.with(token, |value| text.clone_into(value)) {
        Ok(()) => "ok\n".to_owned(),
        Err(stale) => format!("{}\n", stale.seen),
    };
    stream.write_all(answer.as_bytes()).ok()
}

/// Writes it from another process.
pub(crate) fn write(to: SocketAddr, token: Token, text: &str) -> Result<(), StaleToken> {
    let mut stream = TcpStream::connect(to).expect("the process with the value");
    stream.write_all(format!("{token} {text}\n").as_bytes()).expect("sent");
    let mut answer = String::new();
    BufReader::new(stream).read_line(&mut answer).expect("an answer");
    match answer.trim_end() {
        "ok" => Ok(()),
        seen => {
            let seen = Token::new(seen.parse().expect("a token"));
            Err(StaleToken { given: token, seen })
        }
    }
}
