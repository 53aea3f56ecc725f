//! A connection that presents a token, and the guard of whole tables.

use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};

use super::KIND;
use crate::error::{FenceError, StaleToken, signed, unsigned};
use crate::outcome::Outcome;
use crate::rejection::rejected;
use crate::rows::{literal, quoted};
use crate::token::Token;

/// How the triggers' messages begin; the resource follows.
const STALE: &str = "leasehold: stale fencing token for ";
const MISSING: &str = "leasehold: no fencing token for ";

/// A connection that can write to guarded tables, under a token.
///
/// It gives the connection the SQL function `leasehold_token()`, which the guard's triggers
/// ask. A program in another language gives its connection a function of that name
/// (Python: `connection.create_function("leasehold_token", 0, lambda: token)`); the `sqlite3`
/// shell has none and can only read.
///
/// ```
/// use leasehold_fence::Token;
/// use leasehold_fence::sqlite::FencedSqlite;
/// use rusqlite::Connection;
///
/// let connection = Connection::open_in_memory()?;
/// connection.execute_batch("create table stock (item text primary key, left integer)")?;
/// let mut stock = FencedSqlite::new(connection)?;
/// stock.guard_table("stock", "stock")?;
///
/// stock.transaction(Token::new(34), |tx| {
///     Ok(tx.execute("insert into stock values ('item42', 10)", ())?)
/// })?;
/// let late = stock.transaction(Token::new(33), |tx| {
///     Ok(tx.execute("update stock set left = left - 1", ())?)
/// });
/// assert_eq!(late.unwrap_err().stale().unwrap().seen, Token::new(34));
/// assert!(stock.connection().execute("delete from stock", ()).is_err(), "no token");
/// # Ok::<(), leasehold_fence::FenceError>(())
/// ```
pub struct FencedSqlite {
    connection: Connection,
    presented: Arc<Mutex<Option<i64>>>,
}

impl FencedSqlite {
    /// Makes a connection able to present tokens, and creates the table of marks.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when the database cannot be written.
    pub fn new(connection: Connection) -> Result<Self, FenceError> {
        let presented = Arc::new(Mutex::new(None));
        let asked = presented.clone();
        // Innocuous: triggers may use it even where schemas are not trusted.
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
        connection.create_scalar_function("leasehold_token", 0, flags, move |_| {
            Ok::<Option<i64>, rusqlite::Error>(*asked.lock())
        })?;
        super::install(&connection)?;
        Ok(Self { connection, presented })
    }

    /// The connection itself, without a token.
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    /// From now on `table` takes no insert, update or delete without a token that is at least
    /// the highest that `resource` has seen. Tables that share a resource share its mark:
    /// for invariants across them. Guarding again replaces the guard, also by one of another
    /// resource, whose mark is then at least that of the old one. It is at least the highest
    /// `fence_token` of the table's rows, too, if there is such a column.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when there is no such table.
    pub fn guard_table(&self, table: &str, resource: &str) -> Result<(), FenceError> {
        super::whole(&self.connection, || self.replace_guard(table, resource))
    }

    fn replace_guard(&self, table: &str, resource: &str) -> Result<(), FenceError> {
        let mark = "insert into leasehold_fence (resource, token) values (?1, 0) \
                    on conflict do nothing";
        // Takes the write lock: nobody writes between the look at the tokens and the guard.
        self.connection.execute(mark, [resource])?;
        self.seed(table, resource)?;
        self.drop_guard(table)?;
        for event in EVENTS {
            let guard = include_str!("guard.sql")
                .replace("{trigger}", &quoted(&self.free_name(event, table)?))
                .replace("{event}", event)
                .replace("{table}", &quoted(table))
                .replace("{resource}", &literal(resource))
                .replace("{missing}", &literal(&format!("{MISSING}{resource}")))
                .replace("{stale}", &literal(&format!("{STALE}{resource}")));
            self.connection.execute_batch(&guard)?;
        }
        Ok(())
    }

    /// Raises the resource's mark to the greatest that the table brings along: the marks of the
    /// guards that are on it, however they and it were called, and the tokens of its rows.
    fn seed(&self, table: &str, resource: &str) -> Result<(), FenceError> {
        let before = include_str!("marks_before.sql");
        let before: Option<i64> = self.connection.query_row(before, [table], |row| row.get(0))?;
        let rows: Option<i64> = match self.connection.column_exists(None, table, "fence_token")? {
            true => {
                let highest = "select max(fence_token) from {table} \
                               where typeof(fence_token) = 'integer'";
                let highest = highest.replace("{table}", &quoted(table));
                self.connection.query_row(&highest, (), |row| row.get(0))?
            }
            false => None,
        };
        if let Some(floor) = before.max(rows) {
            let raise = "update leasehold_fence set token = ?2, raised_at = current_timestamp \
                         where resource = ?1 and token < ?2";
            self.connection.execute(raise, (resource, floor))?;
        }
        Ok(())
    }

    /// A trigger's name. The obvious one may belong to a table that was renamed.
    fn free_name(&self, event: &str, table: &str) -> Result<String, FenceError> {
        let taken = "select exists (select 1 from sqlite_schema where name = ?1 collate nocase)";
        let mut name = format!("leasehold_fence_{event}_{table}");
        while self.connection.query_row(taken, [&name], |row| row.get(0))? {
            name.push('_');
        }
        Ok(name)
    }

    /// Drops the triggers that are on the table, whatever it was called when they were made.
    fn drop_guard(&self, table: &str) -> Result<usize, FenceError> {
        let ours = "select name from sqlite_schema where type = 'trigger' \
                    and tbl_name = ?1 collate nocase and name like 'leasehold\\_fence\\_%' escape '\\'";
        let mut ours = self.connection.prepare(ours)?;
        let names = ours.query_map([table], |row| row.get(0))?;
        let names = names.collect::<Result<Vec<String>, _>>()?;
        for name in &names {
            self.connection.execute_batch(&format!("drop trigger {}", quoted(name)))?;
        }
        Ok(names.len())
    }

    /// Takes the guard off a table: the escape for operators. Its mark stays.
    ///
    /// # Errors
    ///
    /// [`FenceError::NotFound`] when the table has no guard, [`FenceError::Failed`] when the
    /// database cannot be written.
    pub fn unguard_table(&self, table: &str) -> Result<(), FenceError> {
        match self.drop_guard(table)? {
            0 => Err(FenceError::NotFound { resource: format!("a guard of the table {table:?}") }),
            _ => Ok(()),
        }
    }

    /// Runs `work` in one transaction, under this token, and commits it.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] when a guarded table has seen a higher token, or whatever
    /// `work` says: then nothing was written.
    pub fn transaction<T>(
        &mut self,
        token: Token,
        work: impl FnOnce(&Transaction<'_>) -> Result<T, FenceError>,
    ) -> Result<T, FenceError> {
        let number = signed(token)?;
        // From the start, so that nothing can come between a check and its write.
        let behavior = TransactionBehavior::Immediate;
        let transaction = Transaction::new_unchecked(&self.connection, behavior)?;
        let presenting = Presenting::new(&self.presented, number);
        let done = work(&transaction);
        drop(presenting);
        let done = done.and_then(|done| {
            transaction.commit()?;
            Ok(done)
        });
        done.map_err(|error| self.explain(token, error))
    }

    /// Shuts out every older lease from now on, on every table that this resource guards.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] when a newer lease has been here.
    pub fn advance(&self, resource: &str, token: Token) -> Result<(), FenceError> {
        let advance = include_str!("advance.sql");
        match self.connection.execute(advance, (resource, signed(token)?))? {
            0 => Err(self.stale(resource, token)?),
            _ => Ok(()),
        }
    }

    /// The highest token that a resource has seen.
    ///
    /// # Errors
    ///
    /// [`FenceError::Failed`] when the database cannot be read.
    pub fn seen(&self, resource: &str) -> Result<Option<Token>, FenceError> {
        let sql = "select token from leasehold_fence where resource = ?1";
        let seen = self.connection.query_row(sql, [resource], |row| row.get(0)).optional()?;
        Ok(seen.map(unsigned))
    }

    /// What a trigger said, as what it means.
    fn explain(&self, token: Token, error: FenceError) -> FenceError {
        let FenceError::Failed { message, .. } = &error else { return error };
        if let Some(resource) = message.strip_prefix(STALE) {
            return self.stale(resource, token).unwrap_or(error);
        }
        match message.strip_prefix(MISSING).map(str::to_owned) {
            Some(resource) => FenceError::NoToken { resource, hint: HINT },
            None => error,
        }
    }

    fn stale(&self, resource: &str, given: Token) -> Result<FenceError, FenceError> {
        let seen = self.seen(resource)?.ok_or_else(|| FenceError::Failed {
            resource: resource.to_owned(),
            outcome: Outcome::NotApplied,
            message: "its row in leasehold_fence is missing; guard the table again".to_owned(),
            source: None,
        })?;
        Ok(rejected(KIND, resource, StaleToken { given, seen }).into())
    }
}

const HINT: &str = "write inside FencedSqlite::transaction";

/// A token that the connection's function answers with, as long as this lives.
struct Presenting<'a>(&'a Mutex<Option<i64>>);

impl<'a> Presenting<'a> {
    fn new(presented: &'a Mutex<Option<i64>>, token: i64) -> Self {
        *presented.lock() = Some(token);
        Self(presented)
    }
}

impl Drop for Presenting<'_> {
    fn drop(&mut self) {
        *self.0.lock() = None;
    }
}

const EVENTS: [&str; 3] = ["insert", "update", "delete"];

impl fmt::Debug for FencedSqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedSqlite")
            .field("path", &self.connection.path())
            .finish_non_exhaustive()
    }
}
