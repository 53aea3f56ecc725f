//! What is done to both.

/// Something to do.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// A claim arrives, for the first lock or for both.
    Claim { by: Sender, attempt: u8, both: bool, ttl: u64, queue: bool, guess: Option<Mark> },
    /// A token arrives.
    Store { by: Sender, attempt: u8, both: bool, ttl: u64, token: Mark },
    /// A renewal arrives.
    Renew { by: Sender, both: bool, ttl: u64, token: Mark },
    /// A release arrives.
    Release { by: Sender, both: bool, tell: bool },
    /// A client gives up whatever it has.
    Withdraw { by: Sender, both: bool, tombstone: bool },
    /// An operator takes the lock away.
    Force { by: Sender, lock: usize },
    /// What founds a node, or brings it back.
    Stand { word: &'static str, list: u8, epoch: i8, longest: u64, floor: Mark, keeps: bool },
    /// The server was restarted; it synced every write before, and does now, or not.
    Restart { kept: bool, keeps: bool },
    /// Time passes.
    Pass { seconds: u64 },
    /// The node forgets everything.
    Wipe,
    /// A lock's key is deleted.
    LoseLock { lock: usize },
    /// A foreign client sets a lock.
    Foreign { lock: usize },
}

/// Who sends a request.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sender {
    /// Which client.
    pub(crate) client: u8,
    /// Which list of nodes it has.
    pub(crate) list: u8,
    /// Which epoch it knows, seen from the node's.
    pub(crate) epoch: i8,
}

/// A token, relative to what is there.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Mark {
    /// To the lock's last one.
    Last(i64),
    /// To the node's clock, in seconds.
    Clock(i64),
}

/// The steps of `node_status.lua`; those more often that bring a node back.
const WORDS: [&str; 10] = [
    "look", "arrive", "notice", "found", "found", "seal", "install", "install", "readmit",
    "readmit",
];

impl Step {
    /// What makes a new node vote.
    pub(crate) fn founding(word: &'static str) -> Self {
        Self::Stand { word, list: 0, epoch: 0, longest: 0, floor: Mark::Last(0), keeps: true }
    }

    /// Something.
    pub(crate) fn random(random: &mut fastrand::Rng) -> Self {
        // Most know what they should: otherwise there would be little but refusals.
        let astray = random.u8(..20);
        let by = Sender {
            // What belongs together should often come from the same.
            client: [0, 0, 0, 1, 2][random.usize(..5)],
            list: u8::from(astray == 0),
            epoch: match astray {
                1 => 1,
                2 => -1,
                _ => 0,
            },
        };
        let attempt = u8::from(random.u8(..4) == 0);
        let both = random.u8(..4) == 0;
        let lock = random.usize(..2);
        let ttl = if random.u8(..10) == 0 { 9_000 } else { 5_000 };
        match random.u8(..100) {
            0..32 => {
                let guess = (random.u8(..4) > 0).then(|| Mark::random(random));
                Self::Claim { by, attempt, both, ttl, queue: random.bool(), guess }
            }
            32..48 => Self::Store { by, attempt, both, ttl, token: Mark::random(random) },
            48..58 => Self::Renew { by, both, ttl, token: Mark::Last(renewed(random)) },
            58..66 => Self::Release { by, both, tell: random.bool() },
            66..71 => Self::Withdraw { by, both, tombstone: random.bool() },
            71..73 => Self::Force { by, lock },
            73..88 => {
                let word = WORDS[random.usize(..WORDS.len())];
                let epoch = [0, 0, 1, 1, 2, -1][random.usize(..6)];
                let list = u8::from(random.u8(..10) == 0);
                // With 0 there is nothing to wait for.
                let longest = if random.bool() { 0 } else { 1000 * random.u64(1..20) };
                let (floor, keeps) = (Mark::random(random), random.u8(..4) > 0);
                Self::Stand { word, list, epoch, longest, floor, keeps }
            }
            88..94 => Self::Pass { seconds: super::TICK },
            94 => Self::Pass { seconds: [62, 4_000, 8_000][random.usize(..3)] },
            95 if random.bool() => Self::Wipe,
            95 => Self::Restart { kept: random.bool(), keeps: random.bool() },
            96..98 => Self::LoseLock { lock },
            _ => Self::Foreign { lock },
        }
    }
}

impl Mark {
    fn random(random: &mut fastrand::Rng) -> Self {
        match random.u8(..8) {
            0 => Self::Clock(7_200),
            1 => Self::Clock(-7_200),
            2 => Self::Clock(0),
            3 => Self::Clock(60),
            4 => Self::Last(0),
            5 => Self::Last(-1),
            _ => Self::Last(random.i64(1..3)),
        }
    }
}

/// Nearly always the last token.
fn renewed(random: &mut fastrand::Rng) -> i64 {
    i64::from(random.u8(..6) == 0)
}
