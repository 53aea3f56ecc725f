//! The table at the end of a run.

use std::fmt::Write;

use crate::history::report::Report;

/// One line of the table.
#[derive(Debug)]
pub enum Row {
    /// It ran.
    Ran(Report),
    /// It did not, and why.
    Not {
        /// The store.
        store: &'static str,
        /// The fault.
        fault: &'static str,
        /// Its row.
        row: u32,
        /// Why.
        why: String,
    },
}

/// All rows, for people.
pub fn table(rows: &[Row]) -> String {
    let mut text = String::new();
    let letters = ["U", "RT", "F", "D", "X", "L"];
    let _ = write!(
        text,
        "{:<10}{:<10}{:>4}{:>12}{:>10}",
        "store", "fault", "row", "operations", "acquired"
    );
    let _ = write!(text, "{:>8}{:>8}{:>8} ", "faults", "losses", "fenced");
    letters.iter().for_each(|letter| {
        let _ = write!(text, "{letter:>4}");
    });
    let _ = writeln!(text, "{:>24}  verdict", "lost by the control");
    for row in rows {
        match row {
            Row::Ran(report) => {
                let _ = write!(
                    text,
                    "{:<10}{:<10}{:>4}{:>12}{:>10}{:>8}{:>8}{:>8} ",
                    report.store,
                    report.fault,
                    report.row,
                    report.operations,
                    report.acquisitions,
                    report.injected,
                    report.losses,
                    report.rejected
                );
                for (letter, found) in &report.violations {
                    let found = match report.excused.iter().any(|excused| excused == letter) {
                        true => format!("({})", found.len()),
                        false => found.len().to_string(),
                    };
                    let _ = write!(text, "{found:>4}");
                }
                let control = report.control;
                let lost = format!(
                    "{} of {} ({:.1} %)",
                    control.lost,
                    control.acknowledged,
                    control.percent()
                );
                let _ = writeln!(text, "{lost:>24}  {}", report.verdict());
            }
            Row::Not { store, fault, row, why } => {
                let _ = writeln!(text, "{store:<10}{fault:<10}{row:>4}  {why}");
            }
        }
    }
    for row in rows {
        if let Row::Ran(report) = row
            && report.allowed.overlaps > 0
        {
            let _ = writeln!(
                text,
                "{} {}: {} overlaps with a holder whose session the server had ended; longest {:.1} ms",
                report.store,
                report.fault,
                report.allowed.overlaps,
                report.allowed.longest as f64 / 1e6
            );
        }
    }
    text
}
