//! Redis values under a token.

use leasehold::Token;
use leasehold::fence::StaleToken;
use leasehold::fence::redis::{FencedScript, advance, delete, set};
use leasehold_faults::servers::Redis;

use crate::{NEW, OLD, STALE};

const MARK: &str = "{item}:fence";
const KEY: &str = "{item}:stock";

#[tokio::test]
async fn a_script_runs_only_under_a_token_that_is_not_stale() {
    let server = Redis::start(&[]).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = &mut client.get_multiplexed_async_connection().await.unwrap();
    set(connection, MARK, OLD, KEY, 10).await.unwrap();
    set(connection, MARK, NEW, KEY, 9).await.unwrap();
    assert_eq!(set(connection, MARK, OLD, KEY, 8).await.unwrap_err().stale(), Some(STALE));
    assert_eq!(delete(connection, MARK, OLD, KEY).await.unwrap_err().stale(), Some(STALE));
    assert_eq!(server.cli(&["get", KEY]).unwrap(), "9");

    let take = FencedScript::new("return redis.call('DECRBY', KEYS[1], ARGV[1])");
    let left: i64 = take.under(MARK, NEW).key(KEY).arg(2).invoke(connection).await.unwrap();
    assert_eq!(left, 7);
    let late = take.under(MARK, OLD).key(KEY).arg(2).invoke::<i64>(connection).await;
    assert_eq!(late.unwrap_err().stale(), Some(STALE));

    assert!(delete(connection, MARK, NEW, KEY).await.unwrap());
    assert_eq!(set(connection, MARK, OLD, KEY, 8).await.unwrap_err().stale(), Some(STALE));
    assert_eq!(server.cli(&["exists", KEY]).unwrap(), "0");
}

#[tokio::test]
async fn tokens_beyond_the_numbers_of_lua_are_compared_exactly() {
    let server = Redis::start(&[]).unwrap();
    let client = redis::Client::open(server.url()).unwrap();
    let connection = &mut client.get_multiplexed_async_connection().await.unwrap();
    let mut last = Token::new(0);
    for next in [9, 10, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, u64::MAX - 1, u64::MAX] {
        let next = Token::new(next);
        advance(connection, MARK, next).await.unwrap();
        advance(connection, MARK, next).await.unwrap();
        let stale = advance(connection, MARK, last).await.unwrap_err().stale();
        assert_eq!(stale, Some(StaleToken { given: last, seen: next }));
        last = next;
    }
    server.cli(&["set", MARK, "007"]).unwrap();
    let error = advance(connection, MARK, last).await.unwrap_err();
    assert!(error.stale().is_none() && error.to_string().contains("no fence mark"), "{error}");
}
