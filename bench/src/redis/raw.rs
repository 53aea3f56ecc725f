//! The yardsticks: the least that a lock with a token can be on this driver.

use anyhow::Result;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Script};

/// Takes a free lock, with a token that rises with the clock.
const TAKE: &str = "\
if not redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2]) then return 0 end
local time = redis.call('TIME')
local token = time[1] * 1000000 + time[2]
local last = tonumber(redis.call('GET', KEYS[2]) or '0')
if token <= last then token = last + 1 end
redis.call('SET', KEYS[2], string.format('%.0f', token), 'PX', 3600000)
return token";

const GIVE_BACK: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

const RENEW: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 0";

/// The scripts of a minimal lock.
#[derive(Debug, Clone)]
pub(crate) struct Raw {
    connection: MultiplexedConnection,
    take: Script,
    give_back: Script,
    renew: Script,
}

impl Raw {
    pub(crate) async fn open(url: &str) -> Result<Self> {
        Ok(Self {
            connection: connection(url).await?,
            take: Script::new(TAKE),
            give_back: Script::new(GIVE_BACK),
            renew: Script::new(RENEW),
        })
    }

    pub(crate) async fn take(&mut self, name: &str, owner: &str, ttl: u64) -> Result<u64> {
        let mut take = self.take.prepare_invoke();
        take.key(name).key(format!("token:{name}")).arg(owner).arg(ttl);
        Ok(take.invoke_async(&mut self.connection).await?)
    }

    pub(crate) async fn give_back(&mut self, name: &str, owner: &str) -> Result<u64> {
        let mut give_back = self.give_back.prepare_invoke();
        Ok(give_back.key(name).arg(owner).invoke_async(&mut self.connection).await?)
    }

    pub(crate) async fn renew(&mut self, name: &str, owner: &str, ttl: u64) -> Result<u64> {
        let mut renew = self.renew.prepare_invoke();
        Ok(renew.key(name).arg(owner).arg(ttl).invoke_async(&mut self.connection).await?)
    }
}

/// A connection as the store makes it: without delay, and patient.
pub(crate) async fn connection(url: &str) -> Result<MultiplexedConnection> {
    let client = Client::open(url)?;
    let info = client.get_connection_info().clone();
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.set_tcp_settings(tcp))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}
