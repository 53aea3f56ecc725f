//! A server that is ended and started again, with or without its data: each store with a
//! server says how.

use std::fmt;

use anyhow::Result;

/// What becomes of the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Data {
    /// It is there again.
    Kept,
    /// It is gone.
    Lost,
}

/// A server that can be killed and started again.
pub trait Restart: fmt::Debug + Send {
    /// Ends it without warning.
    fn kill(&mut self) -> Result<()>;

    /// Starts it again and waits until it answers.
    fn start(&mut self, data: Data) -> Result<()>;
}

/// The server of stores that have none.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoServer;

impl Restart for NoServer {
    fn kill(&mut self) -> Result<()> {
        Ok(())
    }

    fn start(&mut self, _data: Data) -> Result<()> {
        Ok(())
    }
}
