//! The scripts beside the model of a node that `leasehold-lab` explores: the same requests,
//! the same answers, and the same state afterwards.

use fastrand::Rng;
use leasehold_lab::quorum::node::{Answer, Node, Order, Request, Rules, Standing};
use leasehold_testkit::servers::Redis;
use redis::{Commands, Connection, Script, Value};

macro_rules! script {
    ($($part:literal)+) => {
        Script::new(concat!($(include_str!(concat!(
            "../../../leasehold/src/backend/redis/", $part
        ))),+))
    };
}

const MARKER: &str = "leasehold:node:lock:";
const LOCK: &str = "lock:a";
const RECORD: &str = "record";
const STEPS: usize = 4_000;

struct Real {
    connection: Connection,
    claim: Script,
    store: Script,
    renew: Script,
    release: Script,
    standing: Script,
}

fn owner(owner: u8) -> String {
    format!("{owner:032x}.00000000")
}

impl Real {
    fn new(server: &Redis) -> Self {
        let connection = redis::Client::open(server.url()).unwrap().get_connection().unwrap();
        Self {
            connection,
            claim: script!("redlock/member.lua" "clock.lua" "redlock/token.lua" "redlock/line.lua"
                           "redlock/claim.lua"),
            store: script!("redlock/member.lua" "clock.lua" "redlock/token.lua" "redlock/store.lua"),
            renew: script!("redlock/member.lua" "clock.lua" "redlock/token.lua" "redlock/renew.lua"),
            release: script!("redlock/member.lua" "redlock/line.lua" "redlock/release.lua"),
            standing: script!("redlock/standing.lua"),
        }
    }

    fn step(&mut self, request: Request) -> Answer {
        let expected = format!("member {} {} ", request.list, request.epoch);
        let said: Value = match request.order {
            Order::Claim { owner: who, guess } => {
                let mut call = self.claim.key(MARKER);
                call.key(LOCK).key(RECORD).key("line").arg(expected).arg("channel").arg("-");
                call.arg(owner(who)).arg(60_000).arg(0).arg(guess.unwrap_or(0));
                call.invoke(&mut self.connection).unwrap()
            }
            Order::Store { owner: who, token } => {
                let mut call = self.store.key(MARKER);
                call.key(LOCK).key(RECORD).arg(expected).arg("channel").arg("-");
                call.arg(owner(who)).arg(token).arg(60_000).invoke(&mut self.connection).unwrap()
            }
            Order::Renew { owner: who, token } => {
                let mut call = self.renew.key(MARKER);
                call.key(LOCK).key(RECORD).key("forced").arg(expected);
                call.arg(owner(who)).arg(token).arg(60_000).invoke(&mut self.connection).unwrap()
            }
            Order::Release { owner: who } => {
                let mut call = self.release.key(MARKER);
                call.key(LOCK).key("line").arg(expected).arg(1).arg(owner(who));
                call.invoke(&mut self.connection).unwrap()
            }
            Order::Seal => self.change("seal", request, None),
            Order::Install { token } => self.change("install", request, Some(token)),
            Order::Readmit => self.change("readmit", request, None),
        };
        self.read(request, said)
    }

    fn change(&mut self, step: &str, request: Request, token: Option<u8>) -> Value {
        let mut call = self.standing.key(MARKER);
        call.arg(step).arg(request.list).arg(request.epoch);
        if let Some(token) = token {
            call.arg(60_000).arg(token);
        }
        call.invoke(&mut self.connection).unwrap()
    }

    fn read(&mut self, request: Request, said: Value) -> Answer {
        let items = match said {
            Value::Array(items) => items,
            Value::BulkString(marker) => {
                let marker = String::from_utf8(marker).unwrap();
                let words: Vec<_> = marker.split(' ').collect();
                return match words[0] {
                    "member" if words[1] != request.list.to_string() => Answer::OtherList,
                    "member" => Answer::OtherEpoch(words[2].parse().unwrap()),
                    _ => Answer::NoMember,
                };
            }
            other => panic!("{other:?}"),
        };
        let yes = |done: bool| if done { Answer::Yes } else { Answer::No };
        let number = |value: &Value| match value {
            Value::Int(number) => u8::try_from(*number).unwrap(),
            other => panic!("{other:?}"),
        };
        match (request.order, &items[0]) {
            (Order::Claim { guess, .. }, Value::Int(1)) => {
                Answer::Granted { last: guess.unwrap(), stored: true }
            }
            (Order::Claim { .. }, Value::Array(parts)) => match &parts[0] {
                Value::Int(1) => Answer::Granted { last: number(&parts[1]), stored: false },
                _ => Answer::Held { last: number(&parts[1]) },
            },
            // The ceiling stands for the token, which is never above it.
            (Order::Seal, Value::Int(1)) => Answer::Sealed { last: self.token().0 },
            (_, done) => yes(*done == Value::Int(1)),
        }
    }

    /// The last token and whose it is, as a claim would find them.
    fn token(&mut self) -> (u8, Option<String>) {
        let marker: Option<String> = self.connection.get(MARKER).unwrap();
        let words = marker.unwrap_or_default();
        let words: Vec<_> = words.split(' ').collect();
        let figure = |at: usize| words.get(at).map_or(0, |word| word.parse::<u64>().unwrap());
        let (ceiling, floor) = (figure(4), figure(5));
        let record: Option<String> = self.connection.get(RECORD).unwrap();
        let record = record.unwrap_or_default();
        let mut parts = record.split(' ');
        let token = parts.next().unwrap().parse::<u64>().unwrap_or(0);
        let whose = (token >= floor).then(|| parts.nth(1).map(str::to_owned)).flatten();
        assert!(token <= ceiling, "{token} is above the ceiling {ceiling}");
        (u8::try_from(token.max(floor)).unwrap(), whose)
    }

    fn assert_like(&mut self, node: &Node) {
        let marker: Option<String> = self.connection.get(MARKER).unwrap();
        let marker = marker.unwrap_or_default();
        let begins = match node.standing {
            Standing::Blank => String::new(),
            Standing::Joining => format!("joining {} {} ", node.list, node.epoch),
            Standing::Member => format!("member {} {} ", node.list, node.epoch),
        };
        assert!(marker.starts_with(&begins) && begins.is_empty() == marker.is_empty(), "{marker}");
        let lock: Option<String> = self.connection.get(LOCK).unwrap();
        assert_eq!(lock, node.lock.map(owner));
        let (token, whose) = self.token();
        assert_eq!((token, whose), (node.token, node.token_owner.map(owner)));
    }
}

#[test]
fn a_node_does_what_the_model_does() {
    let server = Redis::start(&[]).unwrap();
    let mut real = Real::new(&server);
    let rules = Rules::default();
    let mut counted = std::collections::BTreeMap::new();
    for seed in 0..4 {
        let mut rng = Rng::with_seed(seed);
        let mut node = Node::new(0);
        let _: () = redis::cmd("FLUSHALL").query(&mut real.connection).unwrap();
        let _: () = real.connection.set(MARKER, "member 0 0 0 0 0").unwrap();
        for step in 0..STEPS {
            if node.epoch > 200 || node.token > 240 {
                break;
            }
            match rng.u8(0..100) {
                0..6 => {
                    node.vanish();
                    let _: () = real.connection.del(LOCK).unwrap();
                }
                6 => {
                    node.forget();
                    let _: () = redis::cmd("FLUSHDB").query(&mut real.connection).unwrap();
                }
                _ => {
                    let request = draw(&mut rng, &node);
                    let expected = node.step(&rules, request);
                    let said = real.step(request);
                    assert_eq!(said, expected, "seed {seed}, step {step}: {request:?} to {node:?}");
                    let kind = format!("{expected:?}");
                    let kind = kind.split(['(', ' ']).next().unwrap().to_owned();
                    *counted.entry(kind).or_insert(0) += 1;
                }
            }
            real.assert_like(&node);
        }
    }
    // Every kind of answer was given: nothing was agreed on for lack of trying.
    let kinds: Vec<_> = counted.keys().map(String::as_str).collect();
    let all = ["Granted", "Held", "No", "NoMember", "OtherEpoch", "OtherList", "Sealed", "Yes"];
    assert_eq!(kinds, all, "{counted:?}");
}

fn draw(rng: &mut Rng, node: &Node) -> Request {
    let owner = rng.u8(0..3);
    let near = |rng: &mut Rng| node.token.saturating_add(2).saturating_sub(rng.u8(0..4)).max(1);
    let order = match rng.u8(0..100) {
        0..30 => Order::Claim { owner, guess: rng.bool().then(|| near(rng)) },
        30..50 => Order::Store { owner, token: near(rng) },
        50..70 => Order::Renew { owner, token: near(rng) },
        70..80 => Order::Release { owner },
        80..84 => Order::Seal,
        84..92 => Order::Install { token: rng.u8(0..8) },
        _ => Order::Readmit,
    };
    let recovers = matches!(order, Order::Seal | Order::Install { .. } | Order::Readmit);
    // Mostly what a client knows, sometimes an older or newer epoch, or another list.
    let epoch = match rng.u8(0..10) {
        0 => node.epoch.saturating_sub(1),
        1 => node.epoch + 1,
        _ if matches!(order, Order::Seal | Order::Install { .. }) => node.epoch + 1,
        _ => node.epoch,
    };
    let list = u8::from(!recovers && rng.u8(0..20) == 0);
    Request { epoch, list, order }
}
