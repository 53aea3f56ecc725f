//! What several scripts know of the texts at a server, written once.
//!
//! * A lock's record: `<token> <since, in µs> <owner> <channel> <holder>`. The first two have 16
//!   digits until the year 2286, an owner has 32, so that a script may take it apart by its bytes.
//! * A waiter, an item of its lock's queue:
//!   `<owner> <seen, in ms> <number> <ttl, in ms> <channel> <holder>`. `seen` has 13 digits.
//!
//! A channel begins with `S:` within the shard of its slot, with `P:` at a whole server. The words
//! below are replaced when a script's text is made: local variables would cost time in the
//! parts of scripts for what is common.

const WORDS: &[(&str, &str)] = &[
    // How a script that just saw a waiter writes it.
    ("@WAITER@", "owner .. ' ' .. seen .. ' ' .. number .. ' ' .. ttl .. ' ' .. who"),
    // How long a waiter may be silent, and how long a grant that is pushed to it lasts, in ms.
    ("@PATIENCE@", "3000"),
    // How long a queue is kept after its last heartbeat, in ms.
    ("@LINGER@", "3600000"),
    // A queue that is longer is swept.
    ("@LONG@", "64"),
    // How long a record is kept at least, in ms.
    ("@RETENTION@", "3600000"),
    // The first time, in µs, that is not believed: in the year 2112.
    ("@LATEST@", "4503599627370496"),
];

/// A script's text as servers get it.
pub(super) fn fill(text: &str) -> String {
    WORDS.iter().fold(text.to_owned(), |text, (word, meaning)| text.replace(word, meaning))
}
