//! Tables for people and JSON lines for programs.

use serde_json::{Map, Value, json};

/// Who reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    Table,
    Json,
}

/// The width of a case's name and of a figure: with six figures and a goal, 100 columns.
const CASE: usize = 30;
const FIGURE: usize = 8;

/// What a figure should be.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Goal {
    /// At least this, in this column.
    AtLeast(&'static str, f64),
    /// At most this, in this column.
    AtMost(&'static str, f64),
}

impl Goal {
    fn column(self) -> &'static str {
        match self {
            Self::AtLeast(column, _) | Self::AtMost(column, _) => column,
        }
    }

    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtLeast(_, bound) => figure >= bound,
            Self::AtMost(_, bound) => figure <= bound,
        }
    }

    fn text(self) -> String {
        match self {
            Self::AtLeast(column, bound) => format!("{column} >= {bound}"),
            Self::AtMost(column, bound) => format!("{column} <= {bound}"),
        }
    }
}

/// One case and its figures.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) case: String,
    pub(crate) figures: Vec<f64>,
    pub(crate) goals: Vec<Goal>,
}

/// One group.
#[derive(Debug)]
pub(crate) struct Table {
    pub(crate) group: &'static str,
    pub(crate) columns: &'static [&'static str],
    pub(crate) rows: Vec<Row>,
    /// What the figures mean, and what happened.
    pub(crate) notes: Vec<String>,
}

impl Table {
    /// Prints it. How many goals were missed.
    pub(crate) fn print(&self, format: Format) -> usize {
        match format {
            Format::Table => self.print_table(),
            Format::Json => self.rows.iter().for_each(|row| println!("{}", self.json(row))),
        }
        self.rows.iter().map(|row| self.verdicts(row).filter(|(_, met)| !met).count()).sum()
    }

    fn verdicts<'a>(&'a self, row: &'a Row) -> impl Iterator<Item = (Goal, bool)> + 'a {
        row.goals.iter().map(|goal| {
            let column = self.columns.iter().position(|column| *column == goal.column());
            let figure = column.and_then(|column| row.figures.get(column));
            (*goal, figure.is_some_and(|figure| goal.is_met(*figure)))
        })
    }

    fn print_table(&self) {
        print!("\n{:<CASE$}", self.group);
        self.columns.iter().for_each(|column| print!("{column:>FIGURE$}"));
        println!("  goal");
        for row in &self.rows {
            print!("{:<CASE$}", row.case);
            row.figures.iter().for_each(|figure| print!("{:>FIGURE$}", short(*figure)));
            for (index, (goal, met)) in self.verdicts(row).enumerate() {
                let verdict = if met { "ok" } else { "MISSED" };
                // A second goal has a line of its own, under the first.
                let indent = if index == 0 { 0 } else { CASE + FIGURE * self.columns.len() };
                print!("{}", if index == 0 { "" } else { "\n" });
                print!("{:indent$}  {} {verdict}", "", goal.text());
            }
            println!();
        }
        self.notes.iter().for_each(|note| println!("  {note}"));
    }

    fn json(&self, row: &Row) -> Value {
        let mut line = Map::new();
        line.insert("group".into(), self.group.into());
        line.insert("case".into(), row.case.clone().into());
        for (column, figure) in self.columns.iter().zip(&row.figures) {
            line.insert((*column).into(), json!(figure.is_finite().then_some(figure)));
        }
        let goals = self.verdicts(row).map(|(goal, met)| json!({"goal": goal.text(), "met": met}));
        line.insert("goals".into(), goals.collect());
        Value::Object(line)
    }
}

/// Three significant digits, and no more than fit.
fn short(figure: f64) -> String {
    match figure {
        _ if figure.is_nan() => "-".into(),
        _ if figure >= 1e6 => format!("{:.2}M", figure / 1e6),
        _ if figure >= 1e4 => format!("{:.1}k", figure / 1e3),
        _ if figure >= 100.0 => format!("{figure:.0}"),
        _ if figure >= 10.0 => format!("{figure:.1}"),
        _ => format!("{figure:.2}"),
    }
}

pub(crate) fn machine(format: Format) {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let kernel = rustix::system::uname();
    let kernel = kernel.release().to_string_lossy();
    match format {
        Format::Table => println!(
            "{cores} cores, Linux {kernel}. Times in µs, medians over the repetitions.\n\
             Only ratios within one run count."
        ),
        Format::Json => println!("{}", json!({"cores": cores, "kernel": kernel})),
    }
}

pub(crate) fn verdict(format: Format, missed: usize) {
    if format == Format::Table {
        match missed {
            0 => println!("\nAll goals met."),
            1 => println!("\n1 goal missed."),
            _ => println!("\n{missed} goals missed."),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_short() {
        let shown: Vec<String> =
            [0.024, 9.99, 36.54, 999.6, 12_345.0, 1_234_567.0].map(short).into();
        assert_eq!(shown, ["0.02", "9.99", "36.5", "1000", "12.3k", "1.23M"]);
        assert_eq!(short(f64::NAN), "-");
    }

    #[test]
    fn a_figure_that_is_missing_meets_no_goal() {
        let row =
            Row { case: String::new(), figures: vec![], goals: vec![Goal::AtMost("p50", 1.0)] };
        let table = Table { group: "", columns: &["p50"], rows: vec![], notes: vec![] };
        assert!(table.verdicts(&row).all(|(_, met)| !met));
    }
}
