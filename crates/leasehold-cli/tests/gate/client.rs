//! Requests, written by hand, so that they can stop in the middle.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn problem(&self) -> Value {
        serde_json::from_str(&self.body).expect("a problem document")
    }
}

/// A request of which a part was sent.
pub(crate) struct Sending(TcpStream);

/// Sends a head that announces a body of this length.
pub(crate) fn begin(to: SocketAddr, line: &str, headers: &[&str], length: usize) -> Sending {
    let mut stream = TcpStream::connect(to).expect("the gate");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a time-out");
    let mut head = format!("{line} HTTP/1.1\r\nhost: here\r\nconnection: close\r\n");
    for header in headers {
        head += &format!("{header}\r\n");
    }
    head += &format!("content-length: {length}\r\n\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    Sending(stream)
}

impl Sending {
    pub(crate) fn send(&mut self, body: &str) {
        // The gate may have cut us off already; the answer tells.
        let _ = self.0.write_all(body.as_bytes());
    }

    pub(crate) fn answer(mut self) -> Answer {
        let mut text = Vec::new();
        self.0.read_to_end(&mut text).expect("an answer");
        let text = String::from_utf8(text).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Answer { status: status.expect("a status"), body: body.to_owned() }
    }
}

/// A whole request.
pub(crate) fn send(to: SocketAddr, line: &str, headers: &[&str], body: &str) -> Answer {
    let mut sending = begin(to, line, headers, body.len());
    sending.send(body);
    sending.answer()
}

/// A PUT with a token of the lock `stock`.
pub(crate) fn put(to: SocketAddr, token: u64, body: &str) -> Answer {
    send(to, "PUT /", &[&format!("Fencing-Token: stock;{token}")], body)
}
