//! ZooKeeper's four-letter words: what a server says about itself to anyone who asks.

use std::collections::HashMap;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

/// How long a server may take.
const PATIENCE: Duration = Duration::from_secs(2);
/// More than any answer that we want.
const LONGEST: u64 = 64 * 1024;

/// What a server said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Answer {
    /// Its lines, as key and value.
    Said(HashMap<String, String>),
    /// It does not allow this word.
    NotAllowed,
    /// It is there, but serves nobody just now: it has no leader.
    NotServing,
    /// It could not be asked.
    Silent(String),
}

/// Asks a server. Not over TLS: there the words need a certificate like everything else.
pub(super) async fn ask(host: &str, port: u16, word: &str) -> Answer {
    let asking = async {
        let mut stream = TcpStream::connect((host, port)).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut text = String::new();
        stream.take(LONGEST).read_to_string(&mut text).await?;
        std::io::Result::Ok(text)
    };
    match timeout(PATIENCE, asking).await {
        Ok(Ok(text)) => understand(&text),
        Ok(Err(error)) => Answer::Silent(error.to_string()),
        Err(_) => Answer::Silent(format!("no answer within {PATIENCE:?}")),
    }
}

fn understand(text: &str) -> Answer {
    if text.contains("is not executed because it is not in the whitelist") {
        return Answer::NotAllowed;
    }
    if text.contains("not currently serving requests") {
        return Answer::NotServing;
    }
    let pairs = text.lines().filter_map(|line| {
        let (key, value) = line.split_once([':', '='])?;
        Some((key.trim().to_owned(), value.trim().to_owned()))
    });
    Answer::Said(pairs.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_understood() {
        let said =
            understand("Zookeeper version: 3.8.0-${mvngit}\nMode: standalone\ntickTime=200\n");
        let Answer::Said(said) = said else { panic!("{said:?}") };
        assert_eq!((said["Mode"].as_str(), said["tickTime"].as_str()), ("standalone", "200"));
        let refused = "conf is not executed because it is not in the whitelist.\n";
        assert_eq!(understand(refused), Answer::NotAllowed);
        let waiting = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(understand(waiting), Answer::NotServing);
    }
}
