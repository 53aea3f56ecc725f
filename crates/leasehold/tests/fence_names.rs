//! SQLite's marks belong to a table and its rows, however these are named and spelled.
#![cfg(feature = "sqlite")]

use leasehold::Token;
use leasehold::fence::StaleToken;
use leasehold::fence::sqlite::FencedSqlite;
use rusqlite::Connection;

const OLD: Token = Token::new(33);
const NEW: Token = Token::new(34);
const STALE: StaleToken = StaleToken { given: OLD, seen: NEW };

/// A guard under another name began with a mark of zero: 33 was accepted over what 34 wrote.
#[test]
fn a_guard_of_another_resource_or_name_keeps_the_mark() {
    let connection = Connection::open_in_memory().unwrap();
    connection.execute_batch("create table stock (item text primary key)").unwrap();
    let mut stock = FencedSqlite::new(connection).unwrap();
    stock.guard_table("stock", "the 'stock'").unwrap();
    let fill = "insert into stock values ('item')";
    stock.transaction(NEW, |tx| Ok(tx.execute(fill, ())?)).unwrap();
    // Marks of resources with similar names are not the table's.
    stock.advance("the ", Token::new(99)).unwrap();
    stock.advance("the 'stock", Token::new(99)).unwrap();

    stock.guard_table("stock", "shelf").unwrap();
    let write = "delete from stock";
    let late = stock.transaction(OLD, |tx| Ok(tx.execute(write, ())?)).unwrap_err();
    assert_eq!(late.stale(), Some(STALE), "another resource");
    stock.connection().execute_batch("alter table stock rename to shelf").unwrap();
    stock.guard_table("Shelf", "third").unwrap();
    let write = "delete from shelf";
    let late = stock.transaction(OLD, |tx| Ok(tx.execute(write, ())?)).unwrap_err();
    assert_eq!(late.stale(), Some(STALE), "another name");
    assert_eq!(stock.seen("third").unwrap(), Some(NEW));
    // A mark that is higher already stays.
    stock.advance("fourth", Token::new(40)).unwrap();
    stock.guard_table("shelf", "fourth").unwrap();
    assert_eq!(stock.seen("fourth").unwrap(), Some(Token::new(40)));
}

#[test]
fn a_guard_begins_at_the_tokens_of_the_rows() {
    let connection = Connection::open_in_memory().unwrap();
    connection
        .execute_batch(
            "create table stock (item text primary key, fence_token integer not null);
             insert into stock values ('a', 34), ('b', 7)",
        )
        .unwrap();
    let mut stock = FencedSqlite::new(connection).unwrap();
    stock.guard_table("stock", "stock").unwrap();
    let write = "delete from stock";
    let late = stock.transaction(OLD, |tx| Ok(tx.execute(write, ())?)).unwrap_err();
    assert_eq!(late.stale(), Some(STALE));
    assert_eq!(stock.transaction(NEW, |tx| Ok(tx.execute(write, ())?)).unwrap(), 2);
}
