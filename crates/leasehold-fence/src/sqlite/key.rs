//! The name of a row's mark. Keys that the table takes for equal have one mark, however they are
//! spelled: or a row that a newer lease deleted by one spelling would come back by another.

use rusqlite::types::Value;
use rusqlite::{Connection, ToSql};

use crate::error::FenceError;
use crate::outcome::Outcome;
use crate::rows::Rows;

/// What a column makes of a value: <https://www.sqlite.org/datatype3.html#determination_of_column_affinity>.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Affinity {
    Text,
    Numeric,
    Real,
    None,
}

impl Affinity {
    /// The affinity of a declared type. (`any` of a STRICT table would be none: there `7` and
    /// `'7'` share a mark although they are two keys, which only refuses too much.)
    fn of(declared: &str) -> Self {
        let declared = declared.to_ascii_uppercase();
        let names = |parts: &[&str]| parts.iter().any(|part| declared.contains(part));
        match () {
            () if names(&["INT"]) => Self::Numeric,
            () if names(&["CHAR", "CLOB", "TEXT"]) => Self::Text,
            () if declared.is_empty() || names(&["BLOB"]) => Self::None,
            () if names(&["REAL", "FLOA", "DOUB"]) => Self::Real,
            () => Self::Numeric,
        }
    }

    /// `?1` as such a column has it.
    const fn applied(self) -> &'static str {
        match self {
            Self::Text => {
                "case when typeof(?1) in ('integer', 'real') then cast(?1 as text) else ?1 end"
            }
            // The comparison is one of numbers, if the text is one.
            Self::Numeric => {
                "case when typeof(?1) <> 'blob' and cast(?1 as numeric) = ?1 \
                 then cast(?1 as numeric) else ?1 end"
            }
            Self::Real => {
                "case when typeof(?1) <> 'blob' and cast(?1 as numeric) = ?1 \
                 then cast(?1 as real) else ?1 end"
            }
            Self::None => "?1",
        }
    }
}

/// The name of the mark of the row with this key.
pub(super) fn mark(
    connection: &Connection,
    rows: &Rows,
    key: &dyn ToSql,
) -> Result<String, FenceError> {
    let (schema, table) = match rows.table().split_once('.') {
        Some((schema, table)) => (Some(schema), table),
        None => (None, rows.table()),
    };
    let column = connection.column_metadata(schema, table, rows.key())?;
    let text = |text: Option<&std::ffi::CStr>| {
        text.map(|text| text.to_string_lossy().into_owned()).unwrap_or_default()
    };
    let (declared, collation) = (text(column.0), text(column.1));
    // Whatever the column: 8 is 8.0.
    let sql = format!(
        "with given (key) as (select {}) select case when typeof(key) = 'real' \
         and cast(key as integer) = key then cast(key as integer) else key end from given",
        Affinity::of(&declared).applied()
    );
    let mut key: Value = connection.prepare_cached(&sql)?.query_row([key], |row| row.get(0))?;
    if let Value::Text(text) = &mut key {
        match collation.to_ascii_uppercase().as_str() {
            "" | "BINARY" => {}
            "NOCASE" => text.make_ascii_lowercase(),
            "RTRIM" => text.truncate(text.trim_end_matches(' ').len()),
            _ => return Err(unknown_collation(rows, &collation)),
        }
    }
    let quote = "select quote(?1)";
    let quoted: String = connection.prepare_cached(quote)?.query_row([key], |row| row.get(0))?;
    Ok(format!("{}/{quoted}", rows.plain()))
}

fn unknown_collation(rows: &Rows, collation: &str) -> FenceError {
    FenceError::Failed {
        resource: rows.table().to_owned(),
        outcome: Outcome::NotApplied,
        message: format!(
            "the column {} has the collation {collation}, and which texts are equal by it is not \
             known here, so that deleted rows could come back; use a column with the collation \
             BINARY, NOCASE or RTRIM as the key",
            rows.key()
        ),
        source: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The declared types that SQLite's own documentation gives as examples.
    #[test]
    fn affinities_are_those_of_sqlite() {
        for (declared, affinity) in [
            ("BIGINT UNSIGNED", Affinity::Numeric),
            ("VARCHAR(255)", Affinity::Text),
            ("", Affinity::None),
            ("DOUBLE PRECISION", Affinity::Real),
            ("DECIMAL(10,5)", Affinity::Numeric),
            ("FLOATING POINT", Affinity::Numeric),
            ("STRING", Affinity::Numeric),
        ] {
            assert_eq!(Affinity::of(declared), affinity, "{declared}");
        }
    }
}
