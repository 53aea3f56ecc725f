//! How things are said to people: holders, times, durations.

use std::time::{Duration, SystemTime};

use leasehold::{HeldBy, Holder};

/// What others wrote, made safe for a terminal: nothing of it moves the cursor or
/// turns the text around.
pub(crate) fn printable(text: &str) -> String {
    let turns = |c| matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    text.chars()
        .map(|c| match c {
            '\n' | '\t' => ' ',
            c if c.is_control() || turns(c) => char::REPLACEMENT_CHARACTER,
            c => c,
        })
        .collect()
}

/// Who and where.
pub(crate) fn holder(holder: Option<&Holder>) -> String {
    match holder {
        Some(holder) => printable(&holder.to_string()),
        None => "a client that does not say who it is".to_owned(),
    }
}

/// Who, where, and since when.
pub(crate) fn held_by(by: Option<&HeldBy>) -> String {
    let Some(by) = by else { return "another owner".to_owned() };
    let mut said = holder(by.holder.as_ref());
    if let Some(since) = by.since {
        said.push_str(&format!(" since {}", moment(since)));
    }
    if by.never_expires {
        said.push_str(&format!(" ({NEVER_EXPIRES})"));
    }
    said
}

/// What is left of a lock that only its holder ends, and what to do about it.
pub(crate) const NEVER_EXPIRES: &str = "never expires; release --force";

/// A time, and how long ago that is.
pub(crate) fn moment(at: SystemTime) -> String {
    match at.elapsed() {
        Ok(age) => format!("{} ({} ago)", stamp(at), duration(age)),
        Err(_) => stamp(at),
    }
}

/// A time, to the second.
pub(crate) fn stamp(at: SystemTime) -> String {
    humantime::format_rfc3339_seconds(at).to_string()
}

/// A duration, as short as it can be said: its two largest parts.
pub(crate) fn duration(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let (minutes, hours, days) = (seconds / 60, seconds / 3_600, seconds / 86_400);
    match () {
        () if days > 0 => format!("{days}d{:02}h", hours % 24),
        () if hours > 0 => format!("{hours}h{:02}m", minutes % 60),
        () if minutes > 0 => format!("{minutes}m{:02}s", seconds % 60),
        () if seconds > 0 => format!("{seconds}s"),
        () => format!("{}ms", duration.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_short() {
        let said = |millis| duration(Duration::from_millis(millis));
        assert_eq!(said(7), "7ms");
        assert_eq!(said(59_999), "59s");
        assert_eq!(said(61_000), "1m01s");
        assert_eq!(said(7_500_000), "2h05m");
        assert_eq!(said(90_000_000), "1d01h");
    }

    #[test]
    fn nobody_else_writes_to_the_terminal() {
        assert_eq!(printable("a\x1b[2Jb\nc\u{202e}d"), "a\u{fffd}[2Jb c\u{fffd}d");
        assert_eq!(printable("größe 日本"), "größe 日本");
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// What we print can be typed: it is the same duration, without what was left out.
        #[test]
        fn a_duration_is_read_back_to_its_last_part(millis in 0..1u64 << 40) {
            let whole = Duration::from_millis(millis);
            let read = humantime::parse_duration(&duration(whole)).unwrap();
            let part = match whole.as_secs() {
                0 => Duration::from_millis(1),
                1..3_600 => Duration::from_secs(1),
                3_600..86_400 => Duration::from_secs(60),
                _ => Duration::from_secs(3_600),
            };
            prop_assert!(read <= whole && whole - read < part, "{whole:?} was read as {read:?}");
        }

        #[test]
        fn nothing_printable_moves_the_cursor(text in any::<String>()) {
            let printed = printable(&text);
            prop_assert!(!printed.contains(char::is_control), "{printed:?}");
            prop_assert_eq!(printed.chars().count(), text.chars().count());
        }
    }
}
