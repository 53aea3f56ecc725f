//! Marks in a SQLite file. Raises that come together share one commit, and so one fsync.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::marks::{Marks, MarksError, Raised};
use crate::name::Name;
use crate::token::Token;

/// The most raises in one commit.
const MOST: usize = 1_000;

/// Durable marks, in a file that only one process may have open.
pub struct SqliteMarks {
    wishes: mpsc::Sender<Wish>,
    path: PathBuf,
}

struct Wish {
    lock: Name,
    token: Token,
    answer: oneshot::Sender<Result<Token, MarksError>>,
}

impl SqliteMarks {
    /// The marks in this file, which is created if it is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be written, or another process has it: two gates with marks of their
    /// own would not see each other's.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, MarksError> {
        let path = path.as_ref().to_owned();
        let shown = path.display();
        let connection = open(&path).map_err(|error| {
            let busy = error.sqlite_error_code() == Some(rusqlite::ErrorCode::DatabaseBusy);
            MarksError(match busy {
                true => {
                    format!("{shown} is in use by another gate; give each its own file and locks")
                }
                false => format!("{shown}: {error}"),
            })
        })?;
        let (wishes, wished) = mpsc::channel();
        let thread = std::thread::Builder::new().name("leasehold-marks".to_owned());
        let spawned = thread.spawn(move || serve(connection, &wished));
        spawned.map_err(|error| MarksError(format!("cannot start a thread: {error}")))?;
        Ok(Self { wishes, path })
    }
}

impl Marks for SqliteMarks {
    fn raise(&self, lock: &Name, token: Token) -> Raised {
        let (answer, answered) = oneshot::channel();
        let wish = Wish { lock: lock.clone(), token, answer };
        let gone = || MarksError("their thread has ended; restart".to_owned());
        let sent = self.wishes.send(wish).map_err(|_| gone());
        Box::pin(async move {
            sent?;
            answered.await.map_err(|_| gone())?
        })
    }
}

impl fmt::Debug for SqliteMarks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteMarks").field("path", &self.path).finish_non_exhaustive()
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let connection = Connection::open(path)?;
    connection.busy_timeout(Duration::from_secs(1))?;
    // For as long as we live: whoever else opens the file is told.
    connection.pragma_update(None, "locking_mode", "exclusive")?;
    connection.pragma_update(None, "journal_mode", "wal")?;
    // A mark that was answered for must survive a power cut.
    connection.pragma_update(None, "synchronous", "full")?;
    connection.execute_batch(include_str!("marks.sql"))?;
    // Takes the exclusive lock now and not with the first raise.
    connection.execute_batch("begin exclusive; commit")?;
    Ok(connection)
}

/// Answers wishes until nobody can have any. Tokens are kept as text of twenty digits: a
/// token may have 64 bits, SQLite's numbers have 63.
fn serve(mut connection: Connection, wished: &mpsc::Receiver<Wish>) {
    while let Ok(first) = wished.recv() {
        let mut wishes = vec![first];
        wishes.extend(wished.try_iter().take(MOST - 1));
        let raised = raise_all(&mut connection, &wishes);
        for (at, wish) in wishes.into_iter().enumerate() {
            let answer = match &raised {
                Ok(marks) => Ok(marks[at]),
                Err(error) => Err(MarksError(error.to_string())),
            };
            // Whoever asked may be gone.
            let _ = wish.answer.send(answer);
        }
    }
}

fn raise_all(connection: &mut Connection, wishes: &[Wish]) -> rusqlite::Result<Vec<Token>> {
    let transaction = Transaction::new(connection, TransactionBehavior::Immediate)?;
    let mut marks = Vec::with_capacity(wishes.len());
    {
        let mut raise = transaction.prepare_cached(include_str!("raise_mark.sql"))?;
        let mut look = transaction.prepare_cached("select token from mark where lock = ?1")?;
        for wish in wishes {
            let token = format!("{:020}", wish.token.get());
            raise.execute((wish.lock.as_str(), token))?;
            let mark: String = look.query_row([wish.lock.as_str()], |row| row.get(0))?;
            let mark = mark.parse().map_err(|error| {
                let text = rusqlite::types::Type::Text;
                rusqlite::Error::FromSqlConversionFailure(0, text, Box::new(error))
            })?;
            marks.push(Token::new(mark));
        }
    }
    transaction.commit()?;
    Ok(marks)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn marks_survive_and_never_fall() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("marks.db");
        let lock = Name::new("jobs").unwrap();
        let raise = async |marks: &SqliteMarks, token| {
            marks.raise(&lock, Token::new(token)).await.unwrap().get()
        };
        let marks = SqliteMarks::open(&path).unwrap();
        assert_eq!(raise(&marks, 9).await, 9);
        assert_eq!(raise(&marks, 10).await, 10);
        assert_eq!(raise(&marks, 9).await, 10);
        let other = SqliteMarks::open(&path).unwrap_err();
        assert!(other.to_string().contains("another gate"), "{other}");
        drop(marks);
        let marks = loop {
            // Its thread closes the file a moment later.
            match SqliteMarks::open(&path) {
                Ok(marks) => break marks,
                Err(error) => assert!(error.to_string().contains("another gate"), "{error}"),
            }
        };
        assert_eq!(raise(&marks, 3).await, 10);
        assert_eq!(raise(&marks, u64::MAX).await, u64::MAX);
    }

    #[tokio::test]
    async fn raises_that_come_together_are_each_answered() {
        let folder = tempfile::tempdir().unwrap();
        let marks = SqliteMarks::open(folder.path().join("marks.db")).unwrap();
        let wishes = (0..500u64).map(|number| {
            let lock = Name::new(format!("lock {}", number % 7)).unwrap();
            (number, marks.raise(&lock, Token::new(number)))
        });
        for (number, raised) in wishes.collect::<Vec<_>>() {
            assert_eq!(raised.await.unwrap().get(), number);
        }
    }
}
