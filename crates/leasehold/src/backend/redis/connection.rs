//! A connection to a server: our own, or the driver's where TLS or a sentinel is behind it.
//!
//! The driver's futures are large, and would make those of all requests so: they are boxed.

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisResult, Value};

use super::request::Request;
use super::wire::Wire;

#[derive(Debug, Clone)]
pub(in crate::backend) enum Connection {
    Own(Wire),
    Driver(MultiplexedConnection),
}

impl Connection {
    /// Asks once.
    pub(in crate::backend) async fn request(&mut self, request: &Request) -> RedisResult<Value> {
        match self {
            Self::Own(wire) => wire.request(request).await,
            Self::Driver(driver) => Box::pin(request.command().query_async(driver)).await,
        }
    }

    /// The same in the driver's words.
    pub(in crate::backend) async fn ask(&mut self, command: &Cmd) -> RedisResult<Value> {
        match self {
            Self::Own(wire) => wire.ask(command).await,
            Self::Driver(driver) => Box::pin(command.query_async(driver)).await,
        }
    }

    /// Asks in this order, with nothing between. Answers that are to be ignored may be among
    /// the others.
    pub(in crate::backend) async fn ask_all(
        &mut self,
        commands: &Pipeline,
    ) -> RedisResult<Vec<Value>> {
        match self {
            Self::Own(wire) => wire.ask_all(commands).await,
            Self::Driver(driver) => Box::pin(commands.query_async(driver)).await,
        }
    }

    pub(in crate::backend) async fn subscribe(&mut self, channel: &str) -> RedisResult<()> {
        match self {
            Self::Own(wire) => wire.ask(redis::cmd("SUBSCRIBE").arg(channel)).await.map(drop),
            Self::Driver(driver) => Box::pin(driver.subscribe(channel)).await,
        }
    }
}
