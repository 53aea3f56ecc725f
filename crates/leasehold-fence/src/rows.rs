//! What conditional writes to rows have in common in every SQL database: the names they
//! use, and what "0 rows" means.

use super::error::{FenceError, StaleToken, unsigned};
use super::moved::Moved;
use super::rejection::rejected;
use crate::outcome::Outcome;
use crate::token::Token;

/// How often a conditional write is tried that found no row which looks as if it should.
pub(super) const ATTEMPTS: u32 = 8;

/// A table whose rows carry the token of the lease that wrote them last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rows {
    table: String,
    key: String,
    token: String,
    state: String,
}

impl Rows {
    /// The rows of `table` (`schema.table` where there are schemas) by their unique column
    /// `key`. The token is in the column `fence_token`, an integer of 64 bits, not null;
    /// the state, for transitions, in the text column `state`.
    pub fn new(table: impl Into<String>, key: impl Into<String>) -> Self {
        let (token, state) = ("fence_token".to_owned(), "state".to_owned());
        Self { table: table.into(), key: key.into(), token, state }
    }

    /// The token is in another column.
    #[must_use]
    pub fn token_column(mut self, column: impl Into<String>) -> Self {
        self.token = column.into();
        self
    }

    /// The state is in another column.
    #[must_use]
    pub fn state_column(mut self, column: impl Into<String>) -> Self {
        self.state = column.into();
        self
    }

    /// The table, as it was given.
    pub fn table(&self) -> &str {
        &self.table
    }

    /// The unique column, as it was given.
    #[cfg(feature = "sqlite")]
    pub(super) fn key(&self) -> &str {
        &self.key
    }

    /// The table as SQLite's marks name it, which takes `STOCK` and `main.stock` for `stock`.
    #[cfg(feature = "sqlite")]
    pub(super) fn plain(&self) -> String {
        let name = self.table.to_lowercase();
        name.strip_prefix("main.").map_or(name.clone(), str::to_owned)
    }

    /// Puts the names, quoted, into a statement.
    pub(super) fn fill(&self, sql: &str) -> String {
        sql.replace("{table}", &quoted_path(&self.table))
            .replace("{key}", &quoted(&self.key))
            .replace("{token}", &quoted(&self.token))
            .replace("{state}", &quoted(&self.state))
            .replace("{target}", &literal(&quoted_path(&self.table)))
    }

    /// An insert-if-newer of these columns; their values are the parameters from 3 on, which
    /// begin with this sign.
    pub(super) fn put(&self, sql: &str, columns: &[&str], sign: char) -> String {
        let names: String = columns.iter().map(|name| format!(", {}", quoted(name))).collect();
        let values: String = (0..columns.len()).map(|at| format!(", {sign}{}", at + 3)).collect();
        let change = |name: &&str| format!(", {0} = excluded.{0}", quoted(name));
        let changes: String = columns.iter().map(change).collect();
        let sql = self.fill(sql).replace("{columns}", &names).replace("{values}", &values);
        sql.replace("{changes}", &changes)
    }

    /// A conditional write that found no row again and again, although its token is good.
    pub(super) fn not_written(&self) -> FenceError {
        FenceError::Failed {
            resource: self.table.clone(),
            outcome: Outcome::NotApplied,
            message: "the row is not written although its token is not higher; a trigger or a \
                      policy of the table may keep it so"
                .to_owned(),
            source: None,
        }
    }

    pub(super) fn not_found(&self) -> FenceError {
        FenceError::NotFound { resource: format!("the row of {}", self.table) }
    }

    /// Why a conditional write found no row, when the row carries this token.
    /// `None` if the row would be found now.
    pub(super) fn refused(
        &self,
        resource: &'static str,
        given: Token,
        seen: i64,
    ) -> Option<FenceError> {
        let seen = unsigned(seen);
        (seen > given)
            .then(|| rejected(resource, self.table.as_str(), StaleToken { given, seen }).into())
    }

    /// Why a transition found no row, when the row is like this.
    pub(super) fn not_moved(
        &self,
        resource: &'static str,
        given: Token,
        (from, to): (&str, &str),
        row: Option<(i64, String)>,
    ) -> Result<Moved, FenceError> {
        let Some((seen, found)) = row else { return Err(self.not_found()) };
        if let Some(stale) = self.refused(resource, given, seen) {
            return Err(stale);
        }
        if found == to && unsigned(seen) == given {
            return Ok(Moved::Before);
        }
        let resource = format!("the row of {}", self.table);
        Err(FenceError::WrongState { resource, expected: from.to_owned(), found })
    }
}

/// A name as SQL takes it whatever is in it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// `schema.table`, each part quoted.
pub(super) fn quoted_path(path: &str) -> String {
    path.split('.').map(quoted).collect::<Vec<_>>().join(".")
}

/// A text as SQL takes it whatever is in it.
pub(super) fn literal(text: &str) -> String {
    format!("'{}'", text.replace('\'', "''"))
}
