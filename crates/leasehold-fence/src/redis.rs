//! Redis values that take no late writes.
//!
//! A *mark* is a key beside your values that holds the highest token seen. [`FencedScript`]
//! puts the check in front of any Lua script, in the same atomic step; [`set`], [`delete`]
//! and [`advance`] are ready-made.
//!
//! What to mind:
//!
//! * The mark must live as long as the values: no TTL on it, and no eviction (`maxmemory-policy
//!   noeviction`, or a `volatile-*` one).
//! * In a cluster the mark and the values must share a slot: give them a common hash tag,
//!   `{item42}:fence` and `{item42}:stock`.
//! * Only writers that go through the script are checked. Take `SET` and friends from
//!   others with ACLs.
//! * A fail-over that loses writes loses marks with them. Then a late writer may get in:
//!   use `WAIT`, or a database, where that matters.
//! * Turn automatic retries of the driver off (`retries(0)` on a cluster client).

use std::fmt;

use redis::aio::ConnectionLike;
use redis::{FromRedisValue, RedisError, Script, ToRedisArgs};

use super::error::{FenceError, StaleToken};
use super::rejection::rejected;
use crate::outcome::Outcome;
use crate::token::Token;

/// The kind of resource, in metrics and events.
const KIND: &str = "redis";

/// A Lua script that runs only under a token that is not stale.
///
/// The script's `KEYS` and `ARGV` are its own; the mark and the token come from
/// [`FencedScript::under`].
///
/// ```no_run
/// use leasehold_fence::Token;
/// use leasehold_fence::redis::FencedScript;
///
/// # async fn demo(mut connection: redis::aio::MultiplexedConnection, token: Token)
/// # -> Result<(), leasehold_fence::FenceError> {
/// let take = FencedScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
/// let left: i64 = take
///     .under("{item42}:fence", token)
///     .key("{item42}:stock")
///     .arg(1)
///     .invoke(&mut connection)
///     .await?;
/// # Ok(()) }
/// ```
pub struct FencedScript(Script);

impl FencedScript {
    /// A script behind the check.
    pub fn new(code: &str) -> Self {
        Self(Script::new(&format!("{}{code}", include_str!("redis/prelude.lua"))))
    }

    /// A call of it with this token, checked at this mark.
    pub fn under(&self, mark: &str, token: Token) -> FencedCall<'_> {
        let mut call = self.0.prepare_invoke();
        call.key(mark).arg(token.get().to_string());
        FencedCall { call, mark: mark.to_owned(), token }
    }
}

impl fmt::Debug for FencedScript {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedScript").field("sha1", &self.0.get_hash()).finish()
    }
}

/// A call of a [`FencedScript`]. Does nothing until it is invoked.
#[must_use = "it does nothing until it is invoked"]
pub struct FencedCall<'a> {
    call: redis::ScriptInvocation<'a>,
    mark: String,
    token: Token,
}

impl FencedCall<'_> {
    /// One more key of the script.
    pub fn key(mut self, key: impl ToRedisArgs) -> Self {
        self.call.key(key);
        self
    }

    /// One more argument of the script.
    pub fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.call.arg(arg);
        self
    }

    /// Runs it.
    ///
    /// # Errors
    ///
    /// [`FenceError::Stale`] when a newer lease has been here; then the script did not run.
    /// [`FenceError::Failed`] when the script failed, which may have written before that,
    /// or when there was no answer.
    ///
    /// # Cancel safety
    ///
    /// Dropped, the script may or may not run.
    pub async fn invoke<T: FromRedisValue>(
        self,
        connection: &mut impl ConnectionLike,
    ) -> Result<T, FenceError> {
        let done = self.call.invoke_async(connection).await;
        done.map_err(|error| explain(&self.mark, self.token, error))
    }
}

impl fmt::Debug for FencedCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FencedCall")
            .field("mark", &self.mark)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

/// Sets a key, in the name of a lease.
///
/// # Errors
///
/// As [`FencedCall::invoke`].
///
/// # Cancel safety
///
/// Dropped, it may or may not be set.
pub async fn set(
    connection: &mut impl ConnectionLike,
    mark: &str,
    token: Token,
    key: &str,
    value: impl ToRedisArgs,
) -> Result<(), FenceError> {
    let script = FencedScript::new(include_str!("redis/set.lua"));
    script.under(mark, token).key(key).arg(value).invoke(connection).await
}

/// Deletes a key, in the name of a lease; says whether it was there. The mark stays: a late
/// writer cannot bring it back.
///
/// # Errors
///
/// As [`FencedCall::invoke`].
///
/// # Cancel safety
///
/// Dropped, it may or may not be deleted.
pub async fn delete(
    connection: &mut impl ConnectionLike,
    mark: &str,
    token: Token,
    key: &str,
) -> Result<bool, FenceError> {
    let script = FencedScript::new(include_str!("redis/delete.lua"));
    script.under(mark, token).key(key).invoke(connection).await
}

/// Shuts out every older lease from now on.
///
/// # Errors
///
/// As [`FencedCall::invoke`].
///
/// # Cancel safety
///
/// Dropped, the mark may or may not be raised.
pub async fn advance(
    connection: &mut impl ConnectionLike,
    mark: &str,
    token: Token,
) -> Result<(), FenceError> {
    FencedScript::new("").under(mark, token).invoke(connection).await
}

fn explain(mark: &str, given: Token, error: RedisError) -> FenceError {
    if error.code() == Some("STALETOKEN") {
        let word = error.detail().and_then(|detail| detail.split_whitespace().next());
        if let Some(seen) = word.and_then(|word| word.parse().ok()) {
            let stale = StaleToken { given, seen: Token::new(seen) };
            return rejected(KIND, mark, stale).into();
        }
    }
    let outcome = match error.is_connection_refusal() || error.code() == Some("BADMARK") {
        true => Outcome::NotApplied,
        // A script that fails is not rolled back, and an answer may be lost.
        false => Outcome::Unknown,
    };
    FenceError::failed(format!("redis {mark}"), outcome, error)
}
