//! Tables that fit: columns that matter less go first, long texts lose their middle.
//! A line is never longer than the screen is wide.

use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

const GAP: &str = "  ";

/// A column, and how it gives way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// How narrow it may become; `None`: it keeps its width.
    pub(crate) least: Option<usize>,
    /// The highest goes first; zero stays.
    pub(crate) rank: u8,
    /// Numbers stand on the right.
    pub(crate) number: bool,
}

/// The table in lines, no longer than `width`.
pub(crate) fn table(columns: &[Column], rows: &[Vec<String>], width: Option<usize>) -> String {
    let natural = |index: usize| {
        let cells = rows.iter().map(|row| row[index].width());
        cells.max().unwrap_or(0).max(columns[index].title.width())
    };
    let mut shown: Vec<(usize, usize)> = (0..columns.len()).map(|i| (i, natural(i))).collect();
    if let Some(width) = width {
        fit(columns, &mut shown, width);
    }
    let titles: Vec<String> = columns.iter().map(|column| column.title.to_owned()).collect();
    let mut text = String::new();
    for row in std::iter::once(&titles).chain(rows) {
        let cells = shown.iter().map(|(index, room)| {
            let cell = shorten(&row[*index], *room);
            let space = " ".repeat(room.saturating_sub(cell.width()));
            if columns[*index].number { space + &cell } else { cell + &space }
        });
        text.push_str(cells.collect::<Vec<_>>().join(GAP).trim_end());
        text.push('\n');
    }
    text
}

/// Drops and narrows columns until they fit.
fn fit(columns: &[Column], shown: &mut Vec<(usize, usize)>, width: usize) {
    let least = |&(index, natural): &(usize, usize)| {
        columns[index].least.map_or(natural, |least| least.min(natural))
    };
    let gaps = |count: usize| GAP.len() * count.saturating_sub(1);
    while shown.iter().map(least).sum::<usize>() + gaps(shown.len()) > width {
        let first = (0..shown.len()).max_by_key(|at| columns[shown[*at].0].rank);
        match first.filter(|at| columns[shown[*at].0].rank > 0) {
            Some(first) => drop(shown.remove(first)),
            None => break,
        }
    }
    let gives_way = |index: usize| columns[index].least.is_some();
    let kept: usize = shown.iter().filter(|(i, _)| !gives_way(*i)).map(|(_, room)| room).sum();
    let mut left = width.saturating_sub(kept + gaps(shown.len()));
    // The short ones take what they need, the others share the rest.
    let mut flexible: Vec<&mut (usize, usize)> =
        shown.iter_mut().filter(|(index, _)| gives_way(*index)).collect();
    flexible.sort_by_key(|(_, natural)| *natural);
    let mut sharing = flexible.len();
    for (_, room) in flexible {
        *room = (*room).min(left / sharing);
        left -= *room;
        sharing -= 1;
    }
}

/// Names and values below each other; long values go on in the next line.
pub(crate) fn details(pairs: &[(&str, String)], width: Option<usize>) -> String {
    let names = pairs.iter().map(|(name, _)| name.width()).max().unwrap_or(0);
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(names + GAP.len()).max(10));
    let mut text = String::new();
    for (name, value) in pairs {
        for (number, line) in wrap(value, room).iter().enumerate() {
            let name = if number == 0 { *name } else { "" };
            let space = " ".repeat(names - name.width());
            text.push_str(format!("{name}{space}{GAP}{line}").trim_end());
            text.push('\n');
        }
    }
    text
}

/// Lines of at most `room` columns, broken between words where that is possible.
fn wrap(text: &str, room: usize) -> Vec<String> {
    let (mut lines, mut line) = (Vec::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.width() + 1 + word.width() > room {
            lines.push(std::mem::take(&mut line));
        }
        if !line.is_empty() {
            line.push(' ');
        }
        for c in word.chars() {
            if line.width() + c.width().unwrap_or(0) > room {
                lines.push(std::mem::take(&mut line));
            }
            line.push(c);
        }
    }
    lines.push(line);
    lines
}

/// The text, without its middle if it is too long.
fn shorten(text: &str, room: usize) -> String {
    if text.width() <= room {
        return text.to_owned();
    }
    let Some(rest) = room.checked_sub(1) else { return String::new() };
    let take = |chars: &mut dyn Iterator<Item = char>, room: usize| -> Vec<char> {
        let mut left = room;
        chars
            .take_while(|c| {
                let fits = c.width().unwrap_or(0) <= left;
                left = left.saturating_sub(c.width().unwrap_or(0));
                fits
            })
            .collect()
    };
    let head = take(&mut text.chars(), rest.div_ceil(2));
    let tail = take(&mut text.chars().rev(), rest / 2);
    head.into_iter().chain(['…']).chain(tail.into_iter().rev()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: [Column; 3] = [
        Column { title: "LOCK", least: Some(6), rank: 0, number: false },
        Column { title: "HOLDER", least: Some(8), rank: 1, number: false },
        Column { title: "TOKEN", least: None, rank: 2, number: true },
    ];

    fn rows() -> Vec<Vec<String>> {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        vec![
            row(["a", "x", "1"]),
            row(["inventory:item42", "leasehold run 日本語日本語", "12345678"]),
        ]
    }

    #[test]
    fn a_wide_table_says_everything() {
        let expected = "LOCK              HOLDER                         TOKEN\n\
                        a                 x                                  1\n\
                        inventory:item42  leasehold run 日本語日本語  12345678\n";
        assert_eq!(table(&COLUMNS, &rows(), None), expected);
        assert_eq!(table(&COLUMNS, &rows(), Some(54)), expected);
    }

    #[test]
    fn no_line_is_longer_than_the_screen() {
        for width in 1..60 {
            let text = table(&COLUMNS, &rows(), Some(width));
            assert!(text.lines().all(|line| line.width() <= width), "{width}:\n{text}");
            assert_eq!(text.lines().count(), 3, "{width}:\n{text}");
        }
        assert!(table(&COLUMNS, &rows(), Some(30)).contains("12345678"));
        assert!(!table(&COLUMNS, &rows(), Some(20)).contains("TOKEN"));
        assert!(!table(&COLUMNS, &rows(), Some(10)).contains("HOLDER"));
    }

    #[test]
    fn the_middle_goes_first() {
        assert_eq!(shorten("inventory:item42", 9), "inve…em42");
        assert_eq!(shorten("日本語", 4), "日…");
        assert_eq!(shorten("abc", 0), "");
    }

    #[test]
    fn long_values_go_on_below() {
        let pairs = [("a", "one two three".to_owned()), ("long", "1234567890123".to_owned())];
        let expected = "a     one two\n      three\nlong  1234567890\n      123\n";
        assert_eq!(details(&pairs, Some(16)), expected);
        assert_eq!(details(&pairs, None), "a     one two three\nlong  1234567890123\n");
    }
}
