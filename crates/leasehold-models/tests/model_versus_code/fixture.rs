//! A real server whose clock stands still unless it is moved, the real scripts on it, and
//! somebody who hears everything that they publish.

use std::collections::HashMap;
use std::time::Duration;

use leasehold_faults::faults::faketime::FakeTime;
use leasehold_faults::servers::Redis;
use redis::{Cmd, Connection, Value, cmd};
use tempfile::TempDir;

/// The clock's first second: later than any true clock, so that whatever were to see the true
/// time would see an earlier one, at which nothing has expired.
const BEGIN: u64 = 4_000_000_000;
/// Between what one replay leaves behind and the next.
const APART: u64 = 10_000;
/// The channel on which nobody but the listener waits.
const MARK: &str = "model:mark";

/// The server and who speaks with it.
pub(crate) struct Fixture {
    connection: Connection,
    listener: Connection,
    scripts: HashMap<&'static str, String>,
    text: fn(&str) -> Option<&'static str>,
    clock: FakeTime,
    now: u64,
    replays: u64,
    _server: Redis,
    _folder: TempDir,
}

/// What was published: where, and what.
pub(crate) type Message = (String, String);

impl Fixture {
    /// A server that knows these scripts.
    pub(crate) fn start(text: fn(&str) -> Option<&'static str>) -> Self {
        let folder = TempDir::new().expect("a folder");
        let clock = FakeTime::new(folder.path()).expect("scripts/test installs libfaketime");
        clock.stop_at(BEGIN).expect("its file is written");
        let wrapper = clock.wrapper();
        let words: Vec<&str> = wrapper.iter().map(String::as_str).collect();
        let server = Redis::start_under(&words, &[]).expect("a Redis server starts");
        let client = redis::Client::open(server.url()).expect("its URL is one");
        let mut listener = client.get_connection().expect("it listens");
        listener.set_read_timeout(Some(Duration::from_secs(60))).expect("it can be set");
        let hear = cmd("PSUBSCRIBE").arg("model:*").get_packed_command();
        listener.send_packed_command(&hear).expect("it can be sent");
        listener.recv_response().expect("it is heard from now on");
        let connection = client.get_connection().expect("it answers");
        let scripts = HashMap::new();
        let (now, replays) = (BEGIN, 0);
        let (_server, _folder) = (server, folder);
        Self { connection, listener, scripts, text, clock, now, replays, _server, _folder }
    }

    /// A new beginning, long after all that was before: a word that no key has yet.
    pub(crate) fn afresh(&mut self) -> String {
        self.replays += 1;
        self.pass(APART);
        // A replay that ended with a difference left some unheard.
        self.messages();
        format!("model:{}", self.replays)
    }

    /// Moves the clock by so many seconds.
    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now += seconds;
        self.clock.stop_at(self.now).expect("its file is written");
    }

    /// What the server's clock says, in milliseconds.
    pub(crate) fn millis(&self) -> u64 {
        self.now * 1000
    }

    /// What the server's clock says, in microseconds.
    pub(crate) fn micros(&self) -> u64 {
        self.now * 1_000_000
    }

    /// What a script answers.
    pub(crate) fn script(&mut self, name: &'static str, keys: &[String], args: &[String]) -> Value {
        if !self.scripts.contains_key(name) {
            let text = (self.text)(name).unwrap_or_else(|| panic!("there is no script {name}"));
            let mut load = cmd("SCRIPT");
            let hash =
                load.arg("LOAD").arg(text).query(&mut self.connection).expect("it is loaded");
            self.scripts.insert(name, hash);
        }
        let mut call = cmd("EVALSHA");
        call.arg(&self.scripts[name]).arg(keys.len()).arg(keys).arg(args);
        call.query(&mut self.connection).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    /// What the server calls its present run.
    pub(crate) fn run_id(&mut self) -> String {
        let info: String = self.ask(cmd("INFO").arg("server"));
        let run = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        run.expect("it has one").trim_end().to_owned()
    }

    /// What a command answers.
    pub(crate) fn ask<T: redis::FromRedisValue>(&mut self, command: &Cmd) -> T {
        command.query(&mut self.connection).unwrap_or_else(|error| panic!("{command:?}: {error}"))
    }

    /// All that was published since it was asked last.
    pub(crate) fn messages(&mut self) -> Vec<Message> {
        let heard: u64 = self.ask(cmd("PUBLISH").arg(MARK).arg(""));
        assert_eq!(heard, 1, "somebody listens");
        let mut messages = Vec::new();
        loop {
            let value = self.listener.recv_response().expect("what was published arrives");
            let (_, _, channel, message): (String, String, String, String) =
                redis::from_redis_value(value).expect("it is a message");
            if channel == MARK {
                return messages;
            }
            messages.push((channel, message));
        }
    }
}

/// The words of a call.
pub(crate) fn words<const N: usize>(words: [&dyn ToString; N]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}
