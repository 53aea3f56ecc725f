use std::io::{Read, Write};
use std::pin::Pin;
use std::task::{Context, Wake, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{Interest, copy_bidirectional};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::tls::tests::{client_config, server_config};
use super::*;

/// A server that we speak for, a connection to it, and what is heard on that.
type Pair = (TcpStream, Connection, UnboundedReceiver<String>);

async fn pair() -> Pair {
    let (server, client) = streams().await;
    let (connection, heard) = connection(client, None);
    (server, connection, heard)
}

/// The same over TLS, which ends in front of the server.
async fn tls_pair() -> Pair {
    let ((server, mut inside), (outside, client)) = (streams().await, streams().await);
    let acceptor = TlsAcceptor::from(Arc::new(server_config()));
    let layer = Layer::new(&client_config(), "localhost").unwrap();
    let (connection, heard) = connection(client, Some(layer));
    let mut outside = acceptor.accept(outside).await.unwrap();
    task::spawn(async move { copy_bidirectional(&mut outside, &mut inside).await });
    (server, connection, heard)
}

async fn pairs() -> [Pair; 2] {
    [pair().await, tls_pair().await]
}

async fn streams() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    (listener.accept().await.unwrap().0, client)
}

fn connection(client: TcpStream, tls: Option<Layer>) -> (Connection, UnboundedReceiver<String>) {
    let (tell, told) = unbounded_channel();
    let on_heard = Box::new(move |heard: Heard<'_>| {
        let _ = tell.send(match heard {
            Heard::Message(message) => String::from_utf8(message.to_vec()).unwrap(),
            Heard::Ended => "ended".to_owned(),
        });
    });
    (Connection::on(client, tls, on_heard).unwrap(), told)
}

async fn say(server: &TcpStream, text: impl AsRef<[u8]>) {
    let mut rest = text.as_ref();
    while !rest.is_empty() {
        server.writable().await.unwrap();
        rest = &rest[server.try_write(rest).unwrap_or(0)..];
    }
}

/// What the server is asked, until there is nothing for a while.
async fn asked(server: &TcpStream) -> String {
    let mut bytes = [0; 4096];
    let mut text = String::new();
    while timeout(Duration::from_millis(100), server.readable()).await.is_ok() {
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
    for (server, connection, _heard) in pairs().await {
        let [first, second, third] =
            ["a", "b", "c"].map(|word| connection.send(&Request::of(&[word])));
        drop(second);
        assert_eq!(words(&asked(&server).await), ["a", "b", "c"]);
        say(&server, ":1\r\n:2\r\n:").await;
        assert_eq!(connection.answer(first.unwrap()).await.unwrap(), Value::Int(1));
        say(&server, "3\r\n").await;
        assert_eq!(connection.answer(third.unwrap()).await.unwrap(), Value::Int(3));
    }
}

#[tokio::test]
async fn many_at_once_arrive_whole_and_in_order() {
    const MANY: usize = 5_000;
    for (server, connection, _heard) in pairs().await {
        let long = "x".repeat(1_000);
        let echo = |number: usize| Request::of(&["ECHO", &number.to_string(), &long]);
        let asking = |number| connection.send(&echo(number)).unwrap();
        let answers: Vec<_> = (0..MANY).map(asking).collect();
        // More than the socket takes: it is read only now.
        let text = asked(&server).await;
        let numbers: Vec<_> = words(&text).into_iter().skip(1).step_by(3).collect();
        assert_eq!(numbers.len(), MANY);
        for number in numbers {
            say(&server, &format!(":{number}\r\n")).await;
        }
        for (number, answer) in answers.into_iter().enumerate() {
            assert_eq!(connection.answer(answer).await.unwrap(), Value::Int(number as i64));
        }
    }
}

#[tokio::test]
async fn large_requests_and_answers_arrive_whole() {
    for (server, connection, _heard) in pairs().await {
        for size in [65_000, 70_000, 3 << 20] {
            let long = "x".repeat(size);
            let answer = connection.send(&Request::of(&["ECHO", &long])).unwrap();
            assert!(words(&asked(&server).await)[1] == long, "{size}");
            say(&server, &format!("*2\r\n:7\r\n${size}\r\n{long}\r\n")).await;
            let answer = connection.answer(answer).await.unwrap();
            let expected = Value::Array(vec![Value::Int(7), Value::Bytes(long.into_bytes())]);
            assert!(answer == expected, "{size}");
        }
    }
}

/// One that does not fit the socket is still being written when the next one comes: that does
/// not overtake it, and does not cut into it.
#[tokio::test]
async fn what_is_being_written_is_not_overtaken() {
    for (server, connection, _heard) in pairs().await {
        let mut server = server.into_std().unwrap();
        let first = Request::of(&["LARGE", &"x".repeat(32 << 20)]);
        let second = Request::of(&["SMALL", "y"]);
        let mut expected = Vec::new();
        [&first, &second].into_iter().for_each(|request| request.write(&mut expected));
        let _one = connection.send(&first).unwrap();
        // Until whoever writes the rest finds no more room.
        for _ in 0..100 {
            task::yield_now().await;
        }
        let (mut seen, mut chunk) = (Vec::new(), vec![0; 1 << 20]);
        let mut other = None;
        while seen.len() < expected.len() {
            if let Ok(count) = server.read(&mut chunk) {
                seen.extend_from_slice(&chunk[..count]);
            }
            task::yield_now().await;
            // Once there is room again: we come before whoever writes the rest.
            let socket: &TcpStream = connection.0.socket.half.as_ref();
            if other.is_none() && socket.try_io(Interest::WRITABLE, || Ok(())).is_ok() {
                other = Some(connection.send(&second).unwrap());
            }
        }
        assert!(other.is_some());
        assert!(seen == expected, "they were mixed up");
    }
}

#[tokio::test]
async fn messages_come_between_answers() {
    for (server, connection, mut heard) in pairs().await {
        let answer = connection.send(&Request::of(&["a"])).unwrap();
        say(&server, ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n-NOSCRIPT none\r\n").await;
        match connection.answer(answer).await.unwrap_err() {
            ConnectionError::Refused(error) => assert_eq!(error.code(), "NOSCRIPT"),
            other => panic!("{other}"),
        }
        assert_eq!(heard.recv().await.unwrap(), "hi");
    }
}

/// All wait for the next holder, and nobody for the last one.
#[tokio::test]
async fn the_answer_after_a_message_comes_behind_the_messages_of_others() {
    struct Looks(Mutex<UnboundedReceiver<String>>, Mutex<Option<bool>>);
    impl Wake for Looks {
        fn wake(self: Arc<Self>) {
            *self.1.lock() = Some(self.0.lock().try_recv().is_ok());
        }
    }
    let message = ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n";
    let (server, connection, mut heard) = pair().await;
    let (others_server, _others_connection, mut others) = pair().await;
    for (server, heard) in [(&server, &mut heard), (&others_server, &mut others)] {
        say(server, message).await;
        assert_eq!(heard.recv().await.unwrap(), "hi");
    }
    let mut answer = connection.send(&Request::of(&["a"])).unwrap();
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
        for (server, connection, mut heard) in pairs().await {
            let answers = ["a", "b"].map(|word| connection.send(&Request::of(&[word])).unwrap());
            say(&server, last).await;
            if last.is_empty() {
                drop(server);
            }
            assert_eq!(heard.recv().await.unwrap(), "ended", "{last:?}");
            for answer in answers {
                let answered = connection.answer(answer).await.is_ok();
                assert_eq!(answered, last.starts_with(':'), "{last:?}");
            }
            assert!(connection.ask(&Request::of(&["c"])).await.is_err());
        }
    }
}

/// The server goes away in the middle of a record.
#[tokio::test]
async fn an_answer_that_is_cut_off_is_none() {
    let (server, client) = streams().await;
    let layer = Layer::new(&client_config(), "localhost").unwrap();
    let (connection, mut heard) = connection(client, Some(layer));
    let answer = connection.send(&Request::of(&["a"])).unwrap();
    let accepted = TlsAcceptor::from(Arc::new(server_config())).accept(server).await.unwrap();
    let (server, mut session) = accepted.into_inner();
    session.writer().write_all(b":1\r\n").unwrap();
    let mut records = Vec::new();
    while session.wants_write() {
        session.write_tls(&mut records).unwrap();
    }
    say(&server, &records[..records.len() - 1]).await;
    drop(server);
    assert!(connection.answer(answer).await.is_err());
    assert_eq!(heard.recv().await.unwrap(), "ended");
}

#[tokio::test]
async fn it_ends_with_its_last_clone_and_tells_nobody() {
    for (server, connection, mut heard) in pairs().await {
        drop(connection.clone());
        let answer = connection.send(&Request::of(&["a"])).unwrap();
        drop(connection);
        assert!(answer.await.is_err());
        assert_eq!(words(&asked(&server).await), ["a"]);
        assert_eq!(heard.recv().await, None);
    }
}
