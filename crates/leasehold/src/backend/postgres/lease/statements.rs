//! What the server is asked in lease mode, and how its answers are read. The functions are in
//! `../sql/`.
//!
//! A request has an element of each of its arrays for each item, and so has its answer. Items are
//! in the order of their names, in which the server locks its rows.

use tokio_postgres::Row;
use tokio_postgres::types::Type;

use super::super::connection::{Statement, statements};
use crate::backend::kit::time;
use crate::backend::{Grant, Proof};
use crate::clock::Moment;
use crate::name::Name;
use crate::token::Token;

statements! {
    ACQUIRE(TEXT_ARRAY, BYTEA_ARRAY, INT8_ARRAY, BOOL_ARRAY, INT8, INT8, TEXT, INT4, TEXT) =
        "select * from leasehold.acquire($1, $2, $3, $4, $5, $6, $7, $8, $9)";

    /// The common case of that.
    TAKE(TEXT_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8, INT8, TEXT, INT4, TEXT) =
        "select * from leasehold.take($1, $2, $3, $4, $5, $6, $7, $8)";

    SETTLE(TEXT_ARRAY, BYTEA_ARRAY, INT8_ARRAY) = "select * from leasehold.settle($1, $2, $3)";

    HEARTBEAT(TEXT_ARRAY, BYTEA_ARRAY, INT8) = "select * from leasehold.beat($1, $2, $3)";
    SERVE(TEXT_ARRAY) = "select leasehold.serve_all($1)";
    LEAVE(TEXT, BYTEA) = "select leasehold.leave($1, $2)";

    RENEW(TEXT_ARRAY, BYTEA_ARRAY, INT8_ARRAY, INT8_ARRAY, INT8) =
        "select * from leasehold.renew($1, $2, $3, $4, $5)";
    RELEASE(TEXT_ARRAY, BYTEA_ARRAY, INT8_ARRAY) = "select leasehold.release($1, $2, $3)";

    INSPECT(TEXT) = include_str!("sql/inspect.sql");
    LIST(TEXT) = include_str!("sql/list.sql");
    FORCE(TEXT, TEXT, TEXT) = "select leasehold.force($1, $2, $3)";

    /// A page of the locks that are over.
    SWEEP_PAGE(TEXT, INT8) =
        "select last, highest \
         from leasehold.sweep_page($1, $2, interval '1 hour', interval '1 minute')";

    /// What else is over.
    SWEEP() = "select leasehold.sweep(interval '1 hour', interval '1 minute')";
}

/// An array of an answer: an element for each item, as far as there is something to tell.
pub(super) type Column<T> = Option<Vec<Option<T>>>;

pub(super) fn element<T: Copy>(column: &Column<T>, place: usize) -> Option<T> {
    *column.as_ref()?.get(place)?
}

/// The grants of an answer whose columns from this one on are tokens, proofs and terms.
pub(super) fn grants(row: &Row, first: usize) -> impl Fn(usize) -> Option<Grant> + use<> {
    let [tokens, proofs, terms] = [0, 1, 2].map(|at| row.get::<_, Column<i64>>(first + at));
    move |place| {
        Some(grant(element(&tokens, place)?, element(&proofs, place)?, element(&terms, place)?))
    }
}

pub(super) fn grant(token: i64, proved: i64, term: i64) -> Grant {
    let at = Moment::from_nanos(u64::try_from(proved).unwrap_or(0));
    let proof = Proof { at, valid_for: time::from_micros(term) };
    Grant { token: Token::new(token as u64), proof }
}

/// A moment of this client as the tables keep it.
pub(super) fn nanos(moment: Moment) -> i64 {
    i64::try_from(moment.as_nanos()).unwrap_or(i64::MAX)
}

/// These and where they stand in the request, in the order of their names.
pub(super) fn in_order<T>(items: &[T], name: impl Fn(&T) -> &Name) -> Vec<(usize, &T)> {
    let mut order: Vec<_> = items.iter().enumerate().collect();
    order.sort_unstable_by(|(_, one), (_, other)| name(one).cmp(name(other)));
    order
}

/// An answer about each of these, in the order of the request.
pub(super) fn answers<T, A>(order: &[(usize, &T)], answer: impl Fn(usize, &T) -> A) -> Vec<A> {
    let places = order.iter().enumerate();
    let mut answers: Vec<_> = places.map(|(place, (at, item))| (at, answer(place, item))).collect();
    answers.sort_unstable_by_key(|(at, _)| *at);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
